"""A report as LaTeX: booktabs tables, no package beyond a plain TeX Live's recommended set."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from excise.report.model import Block, Cell, Column, Emphasis, Paragraph, Report, Table
from excise.report.plain import visible

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"{-}",
    "[": r"{[}",
    "]": r"{]}",
    "*": r"{*}",  # a row that starts with a bare one would make the \\ before it a \\*
    "\u00a0": "~",
    "\u202f": r"\,",
    "\u2009": r"\,",
    "\u2007": r"\phantom{0}",
    "×": r"\ensuremath{\times}",
    "±": r"\ensuremath{\pm}",
    "·": r"\ensuremath{\cdot}",
    "÷": r"\ensuremath{\div}",
    "−": r"\ensuremath{-}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "≠": r"\ensuremath{\neq}",
    "≈": r"\ensuremath{\approx}",
    "∞": r"\ensuremath{\infty}",
    "→": r"\ensuremath{\rightarrow}",
    "←": r"\ensuremath{\leftarrow}",
    "√": r"\ensuremath{\surd}",
    "∑": r"\ensuremath{\sum}",
    "Δ": r"\ensuremath{\Delta}",
    "σ": r"\ensuremath{\sigma}",
    "µ": r"\textmu{}",
    "μ": r"\textmu{}",
    "°": r"\textdegree{}",
    "²": r"\texttwosuperior{}",
    "³": r"\textthreesuperior{}",
    "¹": r"\textonesuperior{}",
    "½": r"\textonehalf{}",
    "¬": r"\ensuremath{\lnot}",
    "§": r"\S{}",
    "©": r"\textcopyright{}",
    "®": r"\textregistered{}",
    "™": r"\texttrademark{}",
    "€": r"\texteuro{}",
    "…": r"\ldots{}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‑": r"{-}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "•": r"\textbullet{}",
    "\u00ad": r"\-",
}

_ACCENTED = frozenset(
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
    "ĂăĄąĆćČčĎďĐđĘęĚěĞğĹĺĽľŁłŃńŇňŐőŒœŔŕŘřŚśŞşŠšŢţŤťŮůŰűŸŹźŻżŽž"
)
"""Letters that the T1 encoding has, so that inputenc's utf8 sets them."""

_MARK: dict[Emphasis, str] = {
    "none": "{}",
    "good": r"\textit{{{}}}",
    "bad": r"\textbf{{{}}}",
    "warn": r"\textit{{{}}}",
    "muted": "{}",
}

_LONG_ROWS = 40
"""A table with more rows is a longtable, which breaks over pages."""

_PREAMBLE = r"""\documentclass[11pt,a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{textcomp}
\usepackage[margin=22mm]{geometry}
\usepackage{graphicx}
\usepackage{booktabs}
\usepackage{longtable}
\newsavebox{\excisebox}
% Sets a table at its own width, or scaled down to the line if it is wider.
\newenvironment{excisefit}{\begin{lrbox}{\excisebox}}{\end{lrbox}%
  \ifdim\wd\excisebox>\linewidth\resizebox{\linewidth}{!}{\usebox{\excisebox}}%
  \else\usebox{\excisebox}\fi}
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
\raggedright
\begin{document}"""


def render_latex(report: Report, *, table: str | None = None) -> str:
    r"""Return the report as a LaTeX document, or one table of it as a fragment for `\input`.

    The fragment is a bare `tabular` that needs the package booktabs and nothing else.

    Raises:
        UsageError: There is no table of that name.
    """
    if table is not None:
        return _tabular(report.table(table)) + "\n"
    parts = [_PREAMBLE, rf"\section*{{{escape_latex(report.title)}}}"]
    parts += [rf"\textbf{{{escape_latex(text)}}}" for text in report.paragraphs("result")]
    parts += [rf"\textit{{Warning: {escape_latex(text)}}}" for text in report.paragraphs("warning")]
    for section in report.body():
        parts.append(rf"\subsection*{{{escape_latex(section.heading)}}}")
        parts += [_block(block) for block in section.blocks]
    if report.facts:
        parts += [r"\subsection*{Facts}", _facts(report.facts)]
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def escape_latex(text: str) -> str:
    """Return `text` so that LaTeX prints it and obeys none of it.

    Characters that pdfLaTeX's T1 fonts do not have are decomposed if that helps, and else printed
    as their code point, such as `[U+4E2D]`.
    """
    escaped = "".join(_escape_character(c) for c in visible(text))
    return escaped.replace(",,", ",{},")  # T1 fonts set two commas as a low quotation mark


def _escape_character(c: str) -> str:
    known = _SPECIAL.get(c)
    if known is not None:
        return known
    if c.isascii() or c in _ACCENTED:
        return c
    folded = unicodedata.normalize("NFKD", c)
    if folded.isascii() and folded:
        return "".join(_SPECIAL.get(part, part) for part in folded)
    return f"{{[}}U+{ord(c):04X}{{]}}"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Paragraph):
        return _command(block.text) if block.kind == "command" else escape_latex(block.text)
    name = escape_latex(block.name)
    return rf"\textit{{Chart \texttt{{{name}}}:}} {escape_latex(block.caption)}"


def _command(text: str) -> str:
    lines = visible(text, lines=True).split("\n")
    shown = "\\\\\n".join(rf"\texttt{{{escape_latex(line).replace(' ', '~')}}}" for line in lines)
    return f"\\begin{{quote}}\n{shown}\n\\end{{quote}}"


def _table(table: Table) -> str:
    caption = [rf"\textit{{{escape_latex(table.caption)}}}\par\smallskip"] if table.caption else []
    notes = [rf"{{\footnotesize {escape_latex(note)}\par}}" for note in table.notes]
    if len(table.rows) > _LONG_ROWS:
        body = _longtable(table)
    else:
        body = "\\begin{excisefit}\n" + _tabular(table) + "\n\\end{excisefit}\\par"
    return "\n".join([*caption, body, *notes])


def _spec(columns: Sequence[Column]) -> str:
    letters = "".join("r" if column.align == "right" else "l" for column in columns)
    return f"@{{}}{letters}@{{}}"


def _tabular(table: Table) -> str:
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{_spec(table.columns)}}}",
            r"\toprule",
            _head(table.columns),
            r"\midrule",
            *(_row(row) for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _longtable(table: Table) -> str:
    head = _head(table.columns)
    return "\n".join(
        [
            rf"{{\footnotesize\begin{{longtable}}{{{_spec(table.columns)}}}",
            rf"\toprule {head} \midrule \endhead",
            r"\bottomrule \endfoot",
            *(_row(row) for row in table.rows),
            r"\end{longtable}}",
        ]
    )


def _head(columns: Sequence[Column]) -> str:
    cells = []
    for column in columns:
        unit = f" ({column.unit})" if column.unit else ""
        cells.append(escape_latex(column.heading + unit))
    return " & ".join(cells) + r" \\"


def _row(row: Sequence[Cell]) -> str:
    return " & ".join(_MARK[cell.emphasis].format(escape_latex(cell.text)) for cell in row) + r" \\"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = [rf"\item[{{{escape_latex(name)}}}] {escape_latex(value)}" for name, value in facts]
    return "\n".join([r"\begin{description}", *rows, r"\end{description}"])
