// The frame of every page: header, navigation, theme switch; pages are modules that are loaded when they are opened.
import { html, render, useEffect, useRef, useState } from "./html.js";
import { usePlace } from "./router.js";
import { ThemeSwitch } from "./theme_switch.js";
import { Notice, Waiting } from "./widgets.js";

const PAGES = {
  playground: { title: "Playground", load: () => import("./pages/playground.js") },
  memory: { title: "Memory", load: () => import("./pages/memory.js") },
  runs: { title: "Runs", load: () => import("./pages/runs.js") },
  papers: { title: "Papers", load: () => import("./pages/papers.js") },
};

function Studio() {
  const place = usePlace();
  const known = PAGES[place.page];
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <a class="brand" href="/studio/playground"><img src="/studio/assets/icon.svg" alt="" width="26" height="26" />
        <span>mnemo <b>studio</b></span></a>
      <nav aria-label="Pages">
        ${Object.entries(PAGES).map(
          ([name, { title }]) => html`
            <a key=${name} href=${`/studio/${name}`} aria-current=${name === place.page ? "page" : undefined}>${title}</a>
          `,
        )}
      </nav>
      <${ThemeSwitch} />
    </header>
    <main id="main" tabindex="-1">
      ${known
        ? html`<${Page} key=${place.page} page=${known} query=${place.query} />`
        : html`<h1>No such page</h1><p><a href="/studio/playground">Go to the playground</a></p>`}
    </main>
  `;
}

function Page({ page, query }) {
  const [loaded, setLoaded] = useState({});
  const first = useRef(performance.now() < 3000 && !document.title.includes("·"));
  useEffect(() => {
    document.title = `${page.title} · Mnemo studio`;
    // After a change of page, keyboard and screen reader continue at the new content.
    if (!first.current) document.getElementById("main").focus();
    page.load().then(
      (module) => setLoaded({ Content: module.default }),
      (error) => setLoaded({ error }),
    );
  }, []);
  if (loaded.error) return html`<${Notice} kind="bad">${loaded.error.message}</${Notice}>`;
  return loaded.Content ? html`<${loaded.Content} query=${query} />` : html`<${Waiting} />`;
}

const root = document.getElementById("studio");
root.replaceChildren();
render(html`<${Studio} />`, root);
