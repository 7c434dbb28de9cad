// Loaded before the page is drawn, so that a chosen theme never flashes in the other colours.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("mnemo-theme");
  } catch {
    // Storage can be forbidden; the theme then follows the system.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
