// A list that is requested from the API page by page, with the user's sort order, filter and choice of columns. They are in the address,
// so that a view can be bookmarked and sent to others.
import { html, useEffect, useRef, useState } from './dom.js';
import { pageOf, withQuery } from './client.js';
import * as format from './format.js';
import { Problem, Table } from './parts.js';
import { queryOfHash, replaceHash, withHashQuery } from './places.js';
import { useData } from './session.js';

const SIZES = [25, 50, 100, 250, 500];
const DEBOUNCE = 300; // ms without a key press after which a filter is applied

/** The last view of each list, restored when the user returns to it. */
const lastViews = new Map();

/** `columns`: titles of the shown columns; null: the default ones. */
const DEFAULT_VIEW = { page: 1, size: 50, name: '', regex: false, sort: null, reverse: false, vhost: '', columns: null };

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

/** The parameters of a view in the address, without those that have their default value. `scope` is the prefix of their names. */
export function addressOf(view, scope = '') {
  const values = {
    name: view.name,
    regex: view.name !== '' && view.regex ? '1' : '',
    vhost: view.vhost,
    sort: view.sort ?? '',
    desc: view.sort !== null && view.reverse ? '1' : '',
    page: view.page === 1 ? '' : String(view.page),
    rows: view.size === DEFAULT_VIEW.size ? '' : String(view.size),
    columns: view.columns === null ? '' : view.columns.join(','),
  };
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [scope + key, value]));
}

/** The view of the parameters in an address, or null if there are none. Invalid values are ignored. */
export function viewOf(query, scope = '') {
  const get = (key) => query.get(scope + key) ?? '';
  if (!Object.keys(addressOf(DEFAULT_VIEW)).some((key) => query.has(scope + key))) return null;
  const page = Number(get('page'));
  const size = Number(get('rows'));
  return {
    page: Number.isInteger(page) && page > 0 ? page : 1,
    size: SIZES.includes(size) ? size : DEFAULT_VIEW.size,
    name: get('name'),
    regex: get('regex') === '1',
    sort: get('sort') || null,
    reverse: get('desc') === '1',
    vhost: get('vhost'),
    columns: query.has(`${scope}columns`) ? get('columns').split(',') : null,
  };
}

/** The view of a list and a function that changes it, and the address with it. `scope` null: the view is not in the address. */
export function useView(noun, scope = '') {
  const [view, change] = useState(
    () => (scope === null ? null : viewOf(queryOfHash(window.location.hash), scope)) ?? lastViews.get(noun) ?? DEFAULT_VIEW,
  );
  useEffect(() => {
    lastViews.set(noun, view);
    if (scope === null) return;
    replaceHash(withHashQuery(window.location.hash, addressOf(view, scope)));
  }, [view]);
  return [view, (next) => change((now) => (typeof next === 'function' ? next(now) : next))];
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

/** Selects the shown columns. Escape and a click elsewhere close it. */
function ColumnChoice({ view, set, columns, noun }) {
  const element = useRef(null);
  useEffect(() => {
    const close = (event) => {
      if (element.current && !element.current.contains(event.target)) element.current.open = false;
    };
    document.addEventListener('pointerdown', close);
    return () => document.removeEventListener('pointerdown', close);
  }, []);
  const onKeyDown = (event) => {
    if (event.key !== 'Escape') return;
    element.current.open = false;
    element.current.querySelector('summary').focus();
  };
  const titles = columns.map((column) => column.title).filter((title) => title !== '');
  const shown = view.columns ?? titles;
  const toggle = (title, on) => {
    const next = titles.filter((one) => (one === title ? on : shown.includes(one)));
    if (next.length > 0) set((now) => ({ ...now, columns: next.length === titles.length ? null : next }));
  };
  return html`<details class="choice" ref=${element} onKeyDown=${onKeyDown}><summary aria-label=${`Columns of ${noun}`}>Columns</summary>
    <fieldset><legend class="unseen">Columns of ${noun}</legend>
      ${titles.map(
        (title) => html`<label key=${title} class="check"><input type="checkbox" checked=${shown.includes(title)}
          disabled=${shown.includes(title) && shown.length === 1} onChange=${(event) => toggle(title, event.currentTarget.checked)} /> ${title}</label>`,
      )}
      <button type="button" class="action small" onClick=${() => set((now) => ({ ...now, columns: null }))}>Default columns</button>
    </fieldset></details>`;
}

/** The shown columns. Chosen columns are shown on narrow screens, too. */
export function chosen(columns, titles) {
  if (titles === null) return columns;
  const kept = columns.filter((column) => column.title === '' || titles.includes(column.title));
  return kept.some((column) => column.title !== '') ? kept.map((column) => ({ ...column, wide: false })) : columns;
}

function Pages({ view, set, about }) {
  const turn = (page) => set((now) => ({ ...now, page }));
  const most = about.page_count;
  return html`<nav class="pages" aria-label="Pages of the list">
    <button type="button" class="action" disabled=${view.page <= 1} onClick=${() => turn(view.page - 1)}>Previous</button>
    <span>Page <input type="number" min="1" max=${most} value=${view.page} aria-label="Page" onChange=${(event) => {
      const page = Number.parseInt(event.currentTarget.value, 10);
      if (page >= 1 && page <= most) turn(page);
    }} /> of ${format.count(most)}</span>
    <button type="button" class="action" disabled=${view.page >= most} onClick=${() => turn(view.page + 1)}>Next</button>
  </nav>`;
}

/**
 * `path` is requested, or with `at` the path `at(vhost)` of the virtual host in the view; `noun` names the rows. `extra`: additional query
 * parameters. `filter` false: no filter by name, no choice of columns, and nothing in the address. `scope`: prefix of the parameters in the address, for a page
 * with several lists. `choice(view, set)` adds further elements for the user's choice.
 */
export function List({ path, at, noun, columns, keyOf, extra = {}, filter = true, scope = '', choice }) {
  const [view, set] = useView(noun, filter ? scope : null);
  const requested = at ? at(view.vhost === '' ? undefined : view.vhost) : path;
  const { data, error } = useData(withQuery(requested, { ...queryOf(view), ...extra }));
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
      ${choice?.(view, set)}
      <label>Rows <select value=${view.size} onChange=${(event) => {
        const size = Number(event.currentTarget.value);
        set((now) => ({ ...now, page: 1, size }));
      }}>
        ${SIZES.map((size) => html`<option key=${size} value=${size}>${size}</option>`)}</select></label>
      ${filter && html`<${ColumnChoice} view=${view} set=${set} columns=${columns} noun=${noun} />`}
      <span class="faint found" role="status">${data ? `${noun}: ${few}${format.count(about.total_count)}` : ''}</span>
    </div>
    <${Problem} error=${error} />
    ${data && html`<${Table} caption=${noun} columns=${chosen(columns, view.columns)} rows=${about.items} keyOf=${keyOf} order=${order} empty=${`No ${noun}.`} />`}
    ${about.page_count > 1 && html`<${Pages} view=${view} set=${set} about=${about} />`}
  </div>`;
}
