"""Words of human languages: stop words, stems and other forms under which a word of a page can be found."""
