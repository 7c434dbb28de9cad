// The address of the page: /studio/PAGE?name=value. Links inside of the studio change the page without loading it again.
import { useEffect, useState } from "./html.js";

const BASE = "/studio/";

export function place() {
  const [page] = location.pathname.slice(BASE.length).split("/");
  return { page, query: new URLSearchParams(location.search) };
}

/** The address of a page; values of the query may be lists, and empty ones are left out. */
export function address(page, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") words.append(name, each);
  }
  return BASE + page + (words.size ? `?${words}` : "");
}

export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  dispatchEvent(new Event("studio-place"));
}

/** The present place; the component is drawn again when it changes. */
export function usePlace() {
  const [now, set] = useState(place);
  useEffect(() => {
    const changed = () => set(place());
    addEventListener("popstate", changed);
    addEventListener("studio-place", changed);
    document.addEventListener("click", follow);
    return () => {
      removeEventListener("popstate", changed);
      removeEventListener("studio-place", changed);
      document.removeEventListener("click", follow);
    };
  }, []);
  return now;
}

function follow(event) {
  const link = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  const to = new URL(link.href);
  const inside = to.origin === location.origin && to.pathname.startsWith(BASE);
  if (!inside || to.pathname.startsWith(`${BASE}api/`) || (to.hash && to.pathname === location.pathname)) return;
  event.preventDefault();
  go(to.pathname + to.search);
}
