"""``python -m tools.what_works``: torch's operators in every format and dtype, and a page of what works."""
