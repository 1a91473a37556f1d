// Components that all pages share.
import { html, useEffect, useRef, useState } from './dom.js';
import * as format from './format.js';
import { to } from './places.js';
import { confirmed, notify } from './session.js';

export const Link = ({ place, children, ...more }) => html`<a href=${to(...place)} ...${more}>${children}</a>`;

/** An error of a request. */
export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error.reason ?? error.message}</p>`;

export const Section = ({ title, children }) => html`<section><h2>${title}</h2>${children}</section>`;

/** A collapsed section. */
export function Folded({ title, children }) {
  const [open, set] = useState(false);
  return html`<details class="folded" open=${open} onToggle=${(event) => set(event.currentTarget.open)}>
    <summary>${title}</summary>
    ${open && html`<div class="inside">${children}</div>`}
  </details>`;
}

/** Labels and values; entries without a value are omitted. */
export const Facts = ({ of }) => html`<dl class="facts">
  ${of.filter(([, value]) => value !== undefined && value !== null && value !== '').map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}
</dl>`;

/** The members of an object, one on each line. */
export function Pairs({ of }) {
  const members = Object.entries(of ?? {});
  if (members.length === 0) return html`<span class="faint">none</span>`;
  return html`<span class="pairs">${members.map(([key, value]) => html`<span key=${key}><span class="key">${key}</span> ${format.value(value)}</span>`)}</span>`;
}

export const Tag = ({ children, kind = '', title }) => html`<span class=${`tag ${kind}`} title=${title}>${children}</span>`;

const GOOD = ['running', 'up', 'single_active', 'enabled', 'leader', 'follower'];
const BAD = ['down', 'lost', 'stopped', 'blocked', 'noproc', 'unavailable', 'suspected_down'];

/** A state with a coloured marker. */
export function State({ of }) {
  const kind = GOOD.includes(of) ? 'good' : BAD.includes(of) ? 'bad' : 'even';
  return html`<span class=${`state ${kind}`}>${of ?? '–'}</span>`;
}

/** Usage as text and meter. */
export function Used({ part, whole, text }) {
  const share = format.share(part, whole);
  return html`<span class="used"><span>${text}</span>${share !== null && html`<meter min="0" max="1" low="0.75" high="0.9" optimum="0" value=${share}>${Math.round(share * 100)} %</meter>`}</span>`;
}

/**
 * A table. Columns: {title, cell(row), number, wide (hidden on narrow screens), sort}; `sort` is the column's key
 * in `order.by`. A click on its title calls `order.on(sort)`.
 */
export function Table({ caption, columns, rows, keyOf, order, empty = 'None.' }) {
  const classOf = (column) => [column.number && 'number', column.wide && 'wide'].filter(Boolean).join(' ');
  const direction = (column) => (order?.by !== column.sort ? 'none' : order.reverse ? 'descending' : 'ascending');
  const head = (column) => {
    // A column of buttons has no visible title.
    const title = column.title === '' ? html`<span class="unseen">Operations</span>` : column.title;
    if (!column.sort || !order) return html`<th scope="col" class=${classOf(column)}>${title}</th>`;
    return html`<th scope="col" class=${classOf(column)} aria-sort=${direction(column)}>
      <button type="button" class="sort" onClick=${() => order.on(column.sort)}>${column.title}</button></th>`;
  };
  if (rows.length === 0) return html`<p class="faint">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${rows.map(
      (row, at) => html`<tr key=${keyOf ? keyOf(row) : at}>
      ${columns.map((column) => html`<td class=${classOf(column)}>${column.cell(row)}</td>`)}
    </tr>`,
    )}</tbody>
  </table></div>`;
}

/**
 * A button that runs `does`, after a confirmation if `ask` ({title, text, verb}) is given. `done` is shown on success.
 */
export function Action({ does, ask, done, kind = '', children, label }) {
  const [busy, set] = useState(false);
  const press = async () => {
    if (ask && !(await confirmed(ask))) return;
    set(true);
    try {
      await does();
      if (done) notify('good', done);
    } catch (error) {
      notify('bad', error.reason ?? error.message);
    }
    set(false);
  };
  return html`<button type="button" class=${`action ${kind}`} disabled=${busy} onClick=${press} aria-label=${label}>${children}</button>`;
}

/** The pending question as a modal dialog. Escape cancels it. */
export function Question({ of }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (of && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [of]);
  if (!of) return null;
  const cancel = (event) => {
    event.preventDefault();
    of.answer(false);
  };
  return html`<dialog ref=${dialog} onCancel=${cancel} aria-labelledby="question">
    <h2 id="question">${of.title}</h2>
    <p>${of.text}</p>
    <div class="buttons">
      <button type="button" class="action" autofocus onClick=${() => of.answer(false)}>Cancel</button>
      <button type="button" class="action danger" onClick=${() => of.answer(true)}>${of.verb}</button>
    </div>
  </dialog>`;
}
