// A table that scrolls sideways can be scrolled from the keyboard.
const boxes = () => document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((box) => (box.tabIndex = 0));
new MutationObserver(boxes).observe(document.documentElement, { childList: true, subtree: true });
