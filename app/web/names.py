"""Words for what indexes hold as codes: languages, content types, path sections."""

from __future__ import annotations

#: Languages by the first part of their tag (RFC 5646), in English as the page is.
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
    """Return how a facet's value is shown: `/library/`, `German (de-AT)`, `PDF`; what has no words, as it is."""
    if facet == "section":
        return f"/{value}/"
    return _language(value) if facet == "lang" else _TYPES.get(value, value)


def _language(tag: str) -> str:
    """Return a language's name, its tag behind it where that says more, in the case of RFC 5646 section 2.1.1."""
    first, *rest = tag.split("-")
    name = _LANGUAGES.get(first.lower())
    if name is None or not rest:
        return name or tag
    cases = {2: str.upper, 4: str.title}
    return f"{name} ({'-'.join([first.lower(), *(cases.get(len(part), str.lower)(part) for part in rest)])})"
