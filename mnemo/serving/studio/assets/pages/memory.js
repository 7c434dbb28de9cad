import { html } from "../html.js";

export default function Memory() {
  return html`<h1>Memory</h1>`;
}
