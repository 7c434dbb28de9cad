import { html } from "../html.js";

export default function Papers() {
  return html`<h1>Papers</h1>`;
}
