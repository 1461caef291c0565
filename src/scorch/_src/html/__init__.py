"""Reports as HTML, for notebooks and for pages of their own."""
