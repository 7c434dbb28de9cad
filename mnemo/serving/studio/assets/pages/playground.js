import { html } from "../html.js";

export default function Playground() {
  return html`<h1>Playground</h1>`;
}
