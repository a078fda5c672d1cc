"""Names that documentation defines: identifiers, options, commands, directives in headings and definition terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

#: Words of a heading that say what kind of thing its name is: "Alias Directive", "class collections.OrderedDict".
GENERIC: Final = frozenset({
    "abstract", "annotation", "async", "attribute", "class", "classe", "classmethod", "command", "const",
    "constant", "constructor", "coroutine", "decorator", "directive", "direktive", "element", "enum",
    "enumeration", "exception", "fonction", "function", "funktion", "interface", "klasse", "keyword", "macro",
    "member", "method", "module", "modul", "object", "opcode", "operator", "option", "package", "parameter",
    "pragma", "property", "protected", "protocol", "statement", "static", "struct", "structure", "synchronized",
    "type", "typedef", "union", "void",
})  # fmt: skip
#: Those that are in no ordinary phrase: "Function calls" defines no `calls`, but "Alias Directive" defines `Alias`.
_TELLING: Final = frozenset({"directive", "direktive", "keyword", "macro", "opcode", "pragma"})
#: Characters of a heading or term in which names are looked for, and names of one term: `-f, --force`.
_MAX_TEXT: Final = 400
_MAX_NAMES: Final = 6
#: An identifier with its parts: `collections.OrderedDict`, `std::string`, `sys.path[0]` up to its bracket, `no-ff`.
_IDENTIFIER: Final = re.compile(r"[^\W\d][\w$-]*(?:(?:\.|::|#|->)[^\W\d][\w$-]*)*|[@$%][\w.$-]+")
_OPTION: Final = re.compile(r"(?<![\w-])(?:--?|/)[A-Za-z?#][\w?#-]*")
_SIGNATURE: Final = re.compile(r"\s?[(\[{<=]")
#: Several signatures, one after the other, and the name of each.
_SIGNATURES: Final = re.compile(r"(?:[\w.]+\s?\([^()]*\)\s*){2,}")
_CALLED: Final = re.compile(r"([\w.]+)\s?\(")
_BETWEEN_PARTS: Final = re.compile(r"\.|::|#|->")
#: A name in the brackets of its syntax: `<Directory> Directive`.
_IN_BRACKETS: Final = re.compile(r"(?<!\S)<(/?\w+)>(?!\S)")
_NOT_ALPHANUMERIC: Final = re.compile(r"[\W_]+")
#: What follows a name in its heading, without being a part of it.
_SIGNS_AFTER_NAME: Final = ("[source]", "¶")
_AFTER_NAME: Final = re.compile(r"\s*(?:\[source\]|¶)$")


@lru_cache(maxsize=4_096)
def names_in_term(text: str, fragment: str = "") -> tuple[str, ...]:
    """Return the names that a heading or term defines, the main one first; nothing for a heading of other words.

    `fragment` is its id, in which documentation generators often write the full name.
    """
    text = text[:_MAX_TEXT].strip()
    if text.endswith(_SIGNS_AFTER_NAME):
        text = _AFTER_NAME.sub("", text)
    if "<" in text:
        text = _IN_BRACKETS.sub(r"\1", text).strip()
    if text.startswith(("-", "/")) and (options := _OPTION.findall(text)):
        return tuple(dict.fromkeys(options))[:_MAX_NAMES]
    if _SIGNATURES.fullmatch(text):
        return tuple(dict.fromkeys(_CALLED.findall(text)))[:_MAX_NAMES]
    if full := _full_name(text, fragment):
        return (full,)
    return tuple(dict.fromkeys(_names_alone(text)))[:_MAX_NAMES]


def _full_name(text: str, fragment: str) -> str:
    """Return the name that an id spells: `collections.OrderedDict` of `c.PyList_New`, `cmdoption-x`; or nothing."""
    if not fragment or (end := _end_of(fragment)) == "":
        return ""
    wanted = alphanumeric(end)
    signature = _SIGNATURE.search(text)
    for each in _IDENTIFIER.findall(text[: signature.start()] if signature else text):
        if alphanumeric(_end_of(each)) == wanted:
            is_longer = fragment.endswith(f".{each}") and _IDENTIFIER.fullmatch(fragment) and fragment.count(".") > 1
            name = fragment if is_longer else each
            others = text.replace(each, "", 1).split() if not signature else []
            if all(other.lower().strip("*&,:") in GENERIC for other in others):
                return name
    return ""


def _names_alone(text: str) -> Iterator[str]:
    """Yield the names of a text that has nothing but names, generic words and a signature."""
    for part in text.split(", ") if "(" not in text else (text,):
        signature = _SIGNATURE.search(part)
        before = part[: signature.start()] if signature else part
        found = [each for each in before.split() if each.lower().strip("*&,:") not in GENERIC] or before.split()[-1:]
        is_call = signature is not None and not signature[0].startswith(" ")
        if is_call:  # What is before may be a type: `PyObject *PyList_New(...)`.
            found = found[-1:]
        if len(found) == 1 and (name := _IDENTIFIER.fullmatch(found[0].strip("*&,:;.\"'`"))):
            yield name[0]
        else:
            return


def shown_term(text: str, fragment: str = "") -> str:
    """Return a term as a heading: its names, each with `()` if it is called, or all of it if it has no name."""
    names = names_in_term(text, fragment)
    return ", ".join(f"{name}()" if f"{last_part(name)}(" in text else name for name in names) or text


def is_plain_word(name: str, text: str, fragment: str = "") -> bool:
    """Return whether the name in a heading or term with this id may be an ordinary word.

    An identifier has a sign or a capital within it, or a signature, or a word such as Directive beside it.
    """
    is_word = name.isalpha() and (name[1:].islower() or name.isupper() or len(name) == 1)
    if not is_word or f"{name}(" in text or f"{name}(" in fragment:
        return False
    return not any(other.strip("<>¶:") in _TELLING for other in text.replace(name, "", 1).lower().split())


def last_part(name: str) -> str:
    """Return what a qualified name ends with: `OrderedDict` of `collections.OrderedDict`."""
    return _end_of(name) or name


def _end_of(name: str) -> str:
    """Return what follows the last sign between parts of a name, if there is one. Most names have one part."""
    return name if name.isidentifier() else _BETWEEN_PARTS.split(name)[-1]


def alphanumeric(text: str) -> str:
    """Return a text's letters and digits, in lower case: what a name and its id have in common."""
    return (text if text.isalnum() else _NOT_ALPHANUMERIC.sub("", text)).lower()


def is_named_after(fragment: str, text: str) -> bool:
    """Return whether a link to a fragment calls it by the name with which the fragment ends: one word."""
    written = text.partition("(")[0].rstrip()
    if len(written) < 2 or " " in written:
        return False
    fragment = fragment.partition("(")[0]
    last, wanted = fragment[-1:], written[-1]
    # Most links call a fragment otherwise, which its last character shows in a tenth of the time.
    if last.isalnum() and wanted.isalnum() and last.lower() != wanted.lower():
        return False
    return fragment.endswith(written) or alphanumeric(fragment).endswith(alphanumeric(written) or " ")
