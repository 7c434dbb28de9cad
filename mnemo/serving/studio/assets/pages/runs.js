import { html } from "../html.js";

export default function Runs() {
  return html`<h1>Runs</h1>`;
}
