// A list that is requested from the API page by page, with the user's sort order and filter.
import { html, useEffect, useState } from './dom.js';
import { pageOf, withQuery } from './client.js';
import * as format from './format.js';
import { Problem, Table } from './parts.js';
import { useData } from './session.js';

const SIZES = [25, 50, 100, 250, 500];
const DEBOUNCE = 300; // ms without a key press after which a filter is applied

/** The last view of each list, restored when the user returns to it. */
const lastViews = new Map();

const DEFAULT_VIEW = { page: 1, size: 50, name: '', regex: false, sort: null, reverse: false };

/** The query parameters of a view. */
export function queryOf(view) {
  return {
    page: view.page,
    page_size: view.size,
    name: view.name,
    use_regex: view.name !== '' && view.regex,
    sort: view.sort,
    sort_reverse: view.sort !== null && view.reverse,
  };
}

/** The view after a click on the column `sort`: ascending, then descending, then unsorted. */
export function toggleSort(view, sort) {
  if (view.sort !== sort) return { ...view, page: 1, sort, reverse: false };
  return view.reverse ? { ...view, page: 1, sort: null, reverse: false } : { ...view, page: 1, reverse: true };
}

function Filter({ view, set, noun }) {
  const [text, setText] = useState(view.name);
  useEffect(() => {
    if (text === view.name) return undefined;
    const timer = setTimeout(() => set((now) => ({ ...now, page: 1, name: text })), DEBOUNCE);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<label>Filter by name <input type="search" value=${text} spellcheck="false" autocapitalize="none" onInput=${(event) => setText(event.currentTarget.value)} aria-label=${`Filter ${noun} by name`} /></label>
    <label class="check"><input type="checkbox" checked=${view.regex} onChange=${(event) => set((now) => ({ ...now, page: 1, regex: event.currentTarget.checked }))} /> regular expression</label>`;
}

function Pages({ view, set, about }) {
  const turn = (page) => set((now) => ({ ...now, page }));
  const most = about.page_count;
  return html`<nav class="pages" aria-label="Pages">
    <button type="button" class="action" disabled=${view.page <= 1} onClick=${() => turn(view.page - 1)}>Previous</button>
    <span>Page <input type="number" min="1" max=${most} value=${view.page} aria-label="Page" onChange=${(event) => {
      const page = Number.parseInt(event.currentTarget.value, 10);
      if (page >= 1 && page <= most) turn(page);
    }} /> of ${format.count(most)}</span>
    <button type="button" class="action" disabled=${view.page >= most} onClick=${() => turn(view.page + 1)}>Next</button>
  </nav>`;
}

/** `path` is requested; `noun` names the rows. `extra`: additional query parameters. `filter` false: no filter by name. */
export function List({ path, noun, columns, keyOf, extra = {}, filter = true, children }) {
  const [view, change] = useState(() => lastViews.get(noun) ?? DEFAULT_VIEW);
  const set = (next) =>
    change((now) => {
      const view = typeof next === 'function' ? next(now) : next;
      lastViews.set(noun, view);
      return view;
    });
  const { data, error } = useData(path === null ? null : withQuery(path, { ...queryOf(view), ...extra }));
  useEffect(() => {
    // The last page was removed meanwhile.
    if (error?.reason?.startsWith('Page out of range') && view.page > 1) set((now) => ({ ...now, page: 1 }));
  }, [error]);
  const about = pageOf(data) ?? { items: [], filtered_count: null, total_count: null, page_count: 1 };
  const order = { by: view.sort, reverse: view.reverse, on: (sort) => set((now) => toggleSort(now, sort)) };
  const few = data && about.filtered_count !== about.total_count ? `${format.count(about.filtered_count)} of ` : '';
  return html`<div class="list">
    <div class="bar">
      ${filter && html`<${Filter} view=${view} set=${set} noun=${noun} />`}
      ${children}
      <label>Rows <select value=${view.size} onChange=${(event) => {
        const size = Number(event.currentTarget.value);
        set((now) => ({ ...now, page: 1, size }));
      }}>
        ${SIZES.map((size) => html`<option key=${size} value=${size}>${size}</option>`)}</select></label>
      <span class="faint found" role="status">${data ? `${noun}: ${few}${format.count(about.total_count)}` : ''}</span>
    </div>
    <${Problem} error=${error} />
    ${data && html`<${Table} caption=${noun} columns=${columns} rows=${about.items} keyOf=${keyOf} order=${order} empty=${`No ${noun}.`} />`}
    ${about.page_count > 1 && html`<${Pages} view=${view} set=${set} about=${about} />`}
  </div>`;
}
