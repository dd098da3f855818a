"""One sweep made of several."""

PANEL = "Bring your data"
