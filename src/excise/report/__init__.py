"""Reports: one model, rendered as text, Markdown, CSV, JSON, LaTeX and HTML.

Renderers do no arithmetic and no input or output; everything they print is in the model.
"""
