"""Words of human languages: stop words, stems and other forms."""
