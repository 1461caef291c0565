"""``python -m tools.what_works``: torch's operators in every format and dtype, and the page that says what works."""
