// Light, dark, or as the system has it.
import { html, useEffect, useState } from "./html.js";

const CHOICES = ["system", "light", "dark"];
const CHANGED = "studio-theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

const ICONS = {
  system: html`<path d="M12 3a9 9 0 1 0 0 18z" fill="currentColor" /><circle cx="12" cy="12" r="9" />`,
  light: html`<circle cx="12" cy="12" r="4.5" /><path
      d="M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2" />`,
  dark: html`<path d="M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z" />`,
};

function chosen() {
  return document.documentElement.dataset.theme ?? "system";
}

function choose(theme) {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  try {
    localStorage.setItem("mnemo-theme", theme);
  } catch {
    // Storage can be forbidden; the choice then lasts until the page is closed.
  }
  dispatchEvent(new Event(CHANGED));
}

/** "light" or "dark" as shown now; the component is drawn again when that changes. */
export function useTheme() {
  const shown = () => (chosen() === "system" ? (DARK.matches ? "dark" : "light") : chosen());
  const [theme, set] = useState(shown);
  useEffect(() => {
    const changed = () => set(shown());
    DARK.addEventListener("change", changed);
    addEventListener(CHANGED, changed);
    return () => {
      DARK.removeEventListener("change", changed);
      removeEventListener(CHANGED, changed);
    };
  }, []);
  return theme;
}

export function ThemeSwitch() {
  const [theme, set] = useState(chosen);
  const next = CHOICES[(CHOICES.indexOf(theme) + 1) % CHOICES.length];
  const label = `Colours: ${theme}. Switch to ${next}`;
  const change = () => {
    choose(next);
    set(next);
  };
  return html`<button class="icon theme" type="button" onClick=${change} aria-label=${label} title=${label}>
    <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">${ICONS[theme]}</svg>
  </button>`;
}
