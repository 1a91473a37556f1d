// Forms that are generated from a list of fields.
import { html, useRef, useState } from './dom.js';
import { confirmed, notify } from './session.js';
import { TYPES } from './values.js';

let lastId = 0;
const newId = () => {
  lastId += 1;
  return `f${lastId}`;
};

/** An editor for rows of key, value and type. `known` lists suggested [key, type] pairs. */
function Rows({ id, label, value, known = [], onChange }) {
  const rows = [...value, { key: '', value: '', type: 'string' }];
  const set = (at, change) => {
    const next = rows.map((row, index) => (index === at ? { ...row, ...change } : row));
    const type = known.find(([key]) => key === change.key)?.[1];
    if (type && next[at].value === '') next[at].type = type;
    onChange(next.filter((row) => row.key !== '' || row.value !== ''));
  };
  return html`<div class="rows" role="group" aria-labelledby=${`${id}-label`}>
    ${rows.map(
      (row, at) => html`<div class="row" key=${at}>
      <input type="text" aria-label=${`${label}: key ${at + 1}`} placeholder="key" list=${`${id}-known`} value=${row.key} onInput=${(event) => set(at, { key: event.currentTarget.value })} />
      <input type="text" aria-label=${`${label}: value ${at + 1}`} placeholder="value" value=${row.value} onInput=${(event) => set(at, { value: event.currentTarget.value })} />
      <select aria-label=${`${label}: type ${at + 1}`} value=${row.type} onChange=${(event) => set(at, { type: event.currentTarget.value })}>
        ${TYPES.map((type) => html`<option key=${type} value=${type}>${type}</option>`)}
      </select>
    </div>`,
    )}
    <datalist id=${`${id}-known`}>${known.map(([key]) => html`<option key=${key} value=${key} />`)}</datalist>
  </div>`;
}

/** The input element of one field. */
function Control({ id, field, value, onChange }) {
  const text = (event) => onChange(event.currentTarget.value);
  const same = { id, name: field.name, required: field.required, 'aria-describedby': field.hint ? `${id}-hint` : undefined };
  switch (field.type) {
    case 'rows':
      return html`<${Rows} id=${id} label=${field.label} value=${value} known=${field.known} onChange=${onChange} />`;
    case 'select':
      return html`<select ...${same} value=${value} onChange=${text}>
        ${field.options.map(([key, label]) => html`<option key=${key} value=${key}>${label}</option>`)}
      </select>`;
    case 'area':
      return html`<textarea ...${same} rows=${field.rows ?? 4} value=${value} onInput=${text}></textarea>`;
    case 'check':
      return html`<input ...${same} type="checkbox" checked=${value} onChange=${(event) => onChange(event.currentTarget.checked)} />`;
    case 'file':
      return html`<input ...${same} type="file" accept=${field.accept} onChange=${(event) => onChange(event.currentTarget.files[0] ?? null)} />`;
    default:
      return html`<input ...${same} type=${field.type ?? 'text'} min=${field.min} max=${field.max} autocomplete=${field.complete ?? 'off'}
        spellcheck="false" autocapitalize="none" list=${field.among ? `${id}-among` : undefined} value=${value} onInput=${text} />
        ${field.among && html`<datalist id=${`${id}-among`}>${field.among.map((one) => html`<option key=${one} value=${one} />`)}</datalist>`}`;
  }
}

const EMPTY = { rows: [], check: false, file: null };
const initialValue = (field) => field.value ?? EMPTY[field.type] ?? (field.type === 'select' ? (field.options[0]?.[0] ?? '') : '');
const initialValues = (fields) => Object.fromEntries(fields.map((field) => [field.name, initialValue(field)]));

/**
 * Fields: {name, label, type (text, number, password, select, check, area, rows, file), value (initial), hint, options, known, among,
 * when(values)}. `submit` receives the values by name; an error that it throws is shown. `ask(values)` returns a question to confirm
 * first. On success `done` is shown, and the form is reset unless `stays`.
 */
export function Form({ label, fields, verb, submit, ask, done, danger = false, stays = false }) {
  const [values, set] = useState(() => initialValues(fields));
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const id = useRef(null);
  id.current ??= newId();
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy) return;
    // Includes fields that appeared later or were not changed.
    const current = { ...initialValues(fields), ...values };
    setError(null);
    const confirmation = ask?.(current);
    if (confirmation && !(await confirmed(confirmation))) return;
    setBusy(true);
    try {
      const message = await submit(current);
      if (!stays) set(initialValues(fields));
      if (message ?? done) notify('good', message ?? done);
    } catch (error) {
      setError(error.reason ?? error.message);
    }
    setBusy(false);
  };
  const shown = fields.filter((field) => !field.when || field.when({ ...initialValues(fields), ...values }));
  return html`<form onSubmit=${onSubmit} aria-label=${label} autocomplete="off">
    ${shown.map((field) => {
      const of = `${id.current}-${field.name}`;
      return html`<div key=${field.name} class="field">
        <label id=${`${of}-label`} for=${field.type === 'rows' ? undefined : of}>${field.label}</label>
        <div><${Control} id=${of} field=${field} value=${values[field.name] ?? initialValue(field)} onChange=${(value) => set((all) => ({ ...all, [field.name]: value }))} />
        ${field.hint && html`<p class="hint" id=${`${of}-hint`}>${field.hint}</p>`}</div>
      </div>`;
    })}
    ${error && html`<p class="problem" role="alert">${error}</p>`}
    <div class="buttons"><button type="submit" class=${`action ${danger ? 'danger' : 'first'}`} disabled=${busy}>${verb}</button></div>
  </form>`;
}
