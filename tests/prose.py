"""The prose check of `make lint`: the glossary's words and sentence lengths in code comments, texts and documents.

`python tests/prose.py PATH...` checks single files or folders. The check is our own because no maintained prose linter
installs without downloading a binary; codespell checks the spelling.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders that builds make.
BUILT = ("build", "dist")

#: A sentence with more words is reported. Code in backticks, a URL and a placeholder count as one word each.
MAX_WORDS = 25

#: What a relative clause with "who" may follow.
_PERSONS = (
    "anyone|someone|everyone|those|people|person|user|users|operator|operators|visitor|visitors|reader|readers|engineer"
    "|engineers|owner|owners|newcomer|newcomers|administrator|administrators|developer|developers"
)

#: Pattern -> remedy. docs/glossary.md says which word to use.
FORBIDDEN = {
    rf"(?<!\w)(?:(?!(?:{_PERSONS})\b)\w+[,;:.!?]? |^)who\b": "name the actor",
    r"\b(?:whoever|whom|whomever)\b": "name the actor",
    r"\b(?:told|tells|asked|heard)\b": "say 'report', 'state', 'request', 'query' or 'receive'",
    r"\bstands?\b(?! for\b| in for\b|-)": "say 'is', 'is stored' or 'is declared'",
    r"\b(?:is|are|was|were|be|there are) none\b": "say 'missing', 'unknown', 'invalid' or 'empty'",
    r"\b(?:nobody|somebody|anybody|everybody)\b": "name the actor",
    r"\bso many\b": "name the number",
    r"\banew\b": "say 'again'",
    r"\bmend(?:s|ed|ing)?\b": "say 'fix', 'repair' or 'remedy'",
    r"\bheed(?:s|ed)?\b": "say 'obey' or 'honour'",
    r"\b(?:of )?that which\b": "name the thing",
    r"\blet alone\b": "say 'postpone' or 'circuit breaker open'",
    r"\b(?:bury|buries|buried|burial|burials|burying)\b": "say 'dead-letter' or 'tombstone'",
    r"\b(?:revive[sd]?|revival|lineage|farewell)\b": "use the glossary's term",
    r"\bfor ever\b": "say 'forever'",
    r"\blooks? whether\b": "say 'check whether'",
    r"\b(?:by and by|in vain|by the way|ere|thereof|whence|hence)\b": "say it plainly",
    r"\b(?:of|is|are) (?:ours|theirs)\b": "name the owner",
    r"\bof (?:these|such)[.,;]": "repeat the noun",
}
#: Identifiers that say nothing of the thing they name.
FORBIDDEN_NAMES = {"told", "asked", "heard", "known", "way", "look", "what", "here", "whoever", "who", "stands"}

_FORBIDDEN = [(re.compile(pattern, re.IGNORECASE | re.MULTILINE), remedy) for pattern, remedy in FORBIDDEN.items()]

#: Calls whose string arguments people read, by the last part of the callee's name.
_READ_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "warn", "echo", "print", "secho"}
_READ_KEYWORDS = {"help", "epilog", "short_help"}

_DIRECTIVE = re.compile(r"#(?:!|:?\s*(?:type:|noqa|pragma|fmt:|mypy:|ruff:|nosec))")
_CODE = re.compile(r"``[^`]+``|`[^`\n]*(?:\n[^`\n]*)?`")
_URL = re.compile(r"<?\w+://[^\s>)]+>?")
_END = re.compile(
    r"(?<!e\.g)(?<!i\.e)(?<!etc)(?<! vs)(?<!\d)[.!?](?=[\s\"')”]|$)|(?<=\d)[.!?](?=\s|$)|:(?=\s*$)|;(?=\s)"
)
_WORD = re.compile(r"[^\W_][\w'’./@+-]*")
#: A string or a comment: no `#` in a string begins a comment. The module `tokenize` takes ten times as long.
_STRING_OR_COMMENT = re.compile(
    r"""\"{3}(?:\\.|.)*?\"{3}|'{3}(?:\\.|.)*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that people read, and where it begins."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class ProseFinding:
    """One place that breaks a rule of the glossary."""

    passage: Passage
    reason: str

    def __str__(self) -> str:
        return f"{self.passage.path}:{self.passage.line}: {self.reason}"


def check(passage: Passage) -> Iterator[ProseFinding]:
    """Yield what is wrong with a passage: forbidden words, and sentences of more than `MAX_WORDS` words."""
    text = _URL.sub("URL", _CODE.sub("CODE", passage.text))
    for pattern, remedy in _FORBIDDEN:
        for match in pattern.finditer(text):
            yield ProseFinding(passage, f"{match[0].strip()!r}: {remedy}")
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*+] |\d+\. )", text):
        for sentence in _END.split(" ".join(paragraph.split())):
            words = len(_WORD.findall(sentence))
            if words > MAX_WORDS:
                yield ProseFinding(passage, f"sentence of {words} words: {sentence.strip()[:70]} ...")


def check_names(path: Path, nodes: Iterable[ast.AST]) -> Iterator[ProseFinding]:
    """Yield the functions, classes, parameters and variables of a module whose names the glossary forbids."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if name.strip("_").lower() in FORBIDDEN_NAMES:
            yield ProseFinding(Passage(path, node.lineno, name), f"identifier {name!r}: name the thing")


def python_passages(path: Path, source: str, nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    """Yield docstrings, comments and texts for people of a Python module."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Passage(path, node.body[0].lineno, _without_examples(docstring))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _texts(path, node.exc.args)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _READ_CALLS:
                yield from _texts(path, node.args)
            yield from _texts(path, [keyword.value for keyword in node.keywords if keyword.arg in _READ_KEYWORDS])
    yield from _comments(path, source)


def _texts(path: Path, arguments: list[ast.expr]) -> Iterator[Passage]:
    for argument in arguments:
        match argument:
            case ast.Constant(value=str(text)) if " " in text:
                yield Passage(path, argument.lineno, text)
            case ast.JoinedStr(values=parts):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
                yield Passage(path, argument.lineno, text)


def _comments(path: Path, source: str) -> Iterator[Passage]:
    """Yield comments; those on lines that follow each other are one passage."""
    lines: list[str] = []
    start = last = place = 0
    line = 1
    for match in _STRING_OR_COMMENT.finditer(source):
        if not match[0].startswith("#") or _DIRECTIVE.match(match[0]):
            continue
        line += source.count("\n", place, match.start())
        place = match.start()
        if lines and line != last + 1:
            yield Passage(path, start, "\n".join(lines))
            lines = []
        start = start if lines else line
        last = line
        lines.append(re.sub(r"\b(?:noqa|type): .*", "", match[0].lstrip("#: ")))
    if lines:
        yield Passage(path, start, "\n".join(lines))


def _without_examples(docstring: str) -> str:
    """Return a docstring without its indented examples."""
    return "\n".join("" if line.startswith("    ") else line for line in docstring.splitlines())


def document_passages(path: Path, source: str) -> Iterator[Passage]:
    """Yield the paragraphs, list items, headings and table cells of a Markdown or HTML document, without its code."""
    source = re.sub(r"^```.*?^```", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(
        r"<!--.*?-->|\{[%#].*?[%#]\}|<(?:script|style).*?</(?:script|style)>", _blank, source, flags=re.DOTALL
    )
    if path.suffix == ".html":
        source = re.sub(r"<[^>]*>", _blank, re.sub(r"\{\{.*?\}\}", "X", source, flags=re.DOTALL), flags=re.DOTALL)
        source = source.replace("  ", "\n\n")
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*[-*|#]|\s*\d+\. ))", source):
        for cell in block.split("|"):
            if cell.strip():
                text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell)
                yield Passage(path, line, text)
        line += block.count("\n")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " "


def check_file(path: Path) -> Iterator[ProseFinding]:
    """Yield what is wrong in a Python module or a document."""
    source = path.read_text()
    # A large part of the check is to walk the syntax trees: each is walked once.
    nodes = list(ast.walk(ast.parse(source))) if path.suffix == ".py" else []
    for passage in python_passages(path, source, nodes) if nodes else document_passages(path, source):
        yield from check(passage)
    yield from check_names(path, nodes)


def checked_files(names: list[str]) -> list[Path]:
    """Return the Python modules, documents and templates below these names, or of the whole project.

    In a checkout they are those that git does not ignore, in an unpacked archive those outside hidden folders.
    """
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(names or ["."])]
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    else:
        tops = [ROOT / name for name in names] or [top for top in ROOT.iterdir() if top.name not in BUILT]
        files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*"))]
        shown = [file.relative_to(ROOT) for file in files]
        listing = [str(path) for path in shown if not any(part.startswith(".") for part in path.parts)]
    paths = [Path(name) for name in sorted(set(listing))]
    return [path for path in paths if path.suffix in {".py", ".md", ".html"} and (ROOT / path).exists()]


def main(names: list[str]) -> int:
    """Print every finding; return 1 if there are any."""
    findings = [finding for path in checked_files(names) for finding in check_file(ROOT / path)]
    for finding in findings:
        print(str(finding).removeprefix(f"{ROOT}/"))
    if findings:
        print(f"{len(findings)} places; docs/glossary.md has the words to use.")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
