// What scrolls sideways, tables and code, can be scrolled from the keyboard.
const boxes = () => document.querySelectorAll(":is(.md-typeset__scrollwrap, pre > code):not([tabindex])").forEach((box) => (box.tabIndex = 0));
new MutationObserver(boxes).observe(document.documentElement, { childList: true, subtree: true });
