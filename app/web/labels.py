"""Labels of the values by which results are filtered: languages, types and sections."""

from __future__ import annotations

#: English names of languages by the first part of their tag (RFC 5646).
_LANGUAGES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nb": "Norwegian Bokmål",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sr": "Serbian",
    "sv": "Swedish",
    "ta": "Tamil",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}

_TYPES = {
    "text/html": "Web page",
    "application/xhtml+xml": "Web page (XHTML)",
    "text/plain": "Plain text",
    "application/pdf": "PDF",
    "text/markdown": "Markdown",
    "application/xml": "XML",
    "text/xml": "XML (text)",
}


def label_of(facet: str, value: str) -> str:
    """Return the label of a facet's value: `/library/`, `German (de-AT)`, `PDF`. An unknown value is its own label."""
    if facet == "section":
        return f"/{value}/"
    if facet != "lang":
        return _TYPES.get(value, value)
    first, *rest = value.split("-")
    name = _LANGUAGES.get(first.lower())
    if name is None or not rest:
        return name or value
    # Subtags in the case that RFC 5646 section 2.1.1 recommends.
    cases = {2: str.upper, 4: str.title}
    return f"{name} ({'-'.join([first.lower(), *(cases.get(len(part), str.lower)(part) for part in rest)])})"
