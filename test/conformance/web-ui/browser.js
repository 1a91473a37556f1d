// A document without a browser, in which the modules that a node serves run; and what a person does with a page.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { until } = require('../javascript/checks.js');

const API = process.env.API;

/** A request of the checks' own, past the page. */
async function api(method, of, body, user = 'guest:guest') {
  const answer = await fetch(new URL(`api/${of}`, API), {
    method,
    headers: { Authorization: `Basic ${Buffer.from(user).toString('base64')}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  return { status: answer.status, body: text === '' ? null : JSON.parse(text) };
}

const get = async (of) => (await api('GET', of)).body;

/** The page, loaded from what was served. Errors in it fail the check that sees them next. */
async function open() {
  // What is loaded by name is not looked for at NODE_PATH.
  const { Window } = await import(path.join(process.env.WORK, 'node_modules/happy-dom/lib/index.js'));
  const window = new Window({ url: API });
  const index = fs.readFileSync(path.join(process.env.SERVED, 'index.html'), 'utf8');
  // Its modules are loaded below: this document runs none.
  window.document.body.innerHTML = /<body>([\s\S]*)<\/body>/.exec(index)[1];
  globalThis.window = window;
  globalThis.document = window.document;
  const node = globalThis.fetch;
  globalThis.fetch = (url, init) => node(new URL(url, API), init);
  await import(path.join(process.env.SERVED, 'ui/js/main.js'));
  return new Page(window);
}

const text = (element) => element.textContent.replace(/\s+/g, ' ').trim();

class Page {
  constructor(window) {
    this.window = window;
    this.document = window.document;
  }

  text() {
    return text(this.document.body);
  }

  /** Waits until the page says so. */
  async says(...words) {
    for (const word of words) {
      try {
        await until(() => this.text().includes(word), word);
      } catch {
        assert.fail(`the page does not say "${word}", but: ${this.text()}`);
      }
    }
  }

  async silent(word) {
    await until(() => !this.text().includes(word), `the page says "${word}" still`);
  }

  /** To a place, and waits until its heading is there. */
  async go(hash, heading) {
    this.window.location.hash = hash;
    await until(() => [...this.document.querySelectorAll('h1')].some((h1) => text(h1) === heading), `the heading "${heading}" at ${hash}`);
  }

  /** Waits for an element: of those that the selector finds the one that says `word`. */
  async find(selector, word = '', within = this.document) {
    const found = () =>
      [...within.querySelectorAll(selector)].find((element) => text(element).includes(word) || (element.getAttribute('aria-label') ?? '') === word);
    return until(found, `${selector} that says "${word}"`);
  }

  /** The row of a table that has a cell with exactly this text. */
  row(word) {
    const has = (row) =>
      [...row.querySelectorAll('td')].some(
        (cell) => text(cell) === word || [...cell.querySelectorAll('a, code')].some((part) => text(part) === word),
      );
    return until(() => [...this.document.querySelectorAll('tbody tr')].find(has), `a row with "${word}"`);
  }

  async press(word, within = this.document) {
    const button = await until(() => [...within.querySelectorAll('button')].find((b) => text(b) === word && !b.disabled), `the button "${word}"`);
    button.click();
  }

  /** Opens what is folded. */
  async unfold(title) {
    const folded = await until(
      () => [...this.document.querySelectorAll('details')].find((d) => text(d.querySelector('summary')) === title),
      `"${title}" to unfold`,
    );
    folded.open = true;
    folded.dispatchEvent(new this.window.Event('toggle'));
    await until(() => folded.querySelector('.inside'), `"${title}" unfolded`);
    return folded;
  }

  enter(control, value) {
    if (control.type === 'checkbox') control.checked = value;
    else control.value = value;
    const event = control.tagName === 'SELECT' || control.type === 'checkbox' ? 'change' : 'input';
    control.dispatchEvent(new this.window.Event(event, { bubbles: true }));
  }

  /** Fills the fields of the form that is called `label` by their names, rows as [[key, value, type]], and submits it. */
  async fill(label, values) {
    const form = await this.find('form', label);
    // What it did before is done, and its fields are as it left them.
    await until(() => !form.querySelector('[type=submit]').disabled, `${label} is not busy`);
    for (const [name, value] of Object.entries(values)) {
      if (Array.isArray(value)) await this.rows(form, name, value);
      else this.enter(await until(() => form.querySelector(`[name="${name}"]`), `the field ${name} of ${label}`), value);
    }
    // What was entered is in the form's state with the next turn.
    await new Promise((resume) => setTimeout(resume));
    form.dispatchEvent(new this.window.Event('submit', { bubbles: true, cancelable: true }));
    return form;
  }

  async rows(form, name, rows) {
    for (const [at, [key, value, type]] of rows.entries()) {
      const row = await until(() => [...form.querySelectorAll(`.rows[aria-labelledby$="-${name}-label"] .row`)][at], `row ${at + 1} of ${name}`);
      const [first, second] = row.querySelectorAll('input');
      this.enter(first, key);
      await new Promise((resume) => setTimeout(resume));
      this.enter(second, value);
      await new Promise((resume) => setTimeout(resume));
      if (type) this.enter(row.querySelector('select'), type);
    }
  }

  /** Answers the question that is asked, which must name `words`. */
  async answer(verb, ...words) {
    const dialog = await this.find('dialog');
    for (const word of words) assert.ok(text(dialog).includes(word), `the question does not name "${word}": ${text(dialog)}`);
    await this.press(verb, dialog);
    await until(() => !this.document.querySelector('dialog'), 'the question is answered');
  }

  /** Nothing that the page was given has become markup. */
  clean() {
    assert.equal(this.document.querySelectorAll('img, script:not([type="module"]), iframe, [onerror], [onload]').length, 0);
    for (const link of this.document.querySelectorAll('a[href]')) assert.match(link.getAttribute('href'), /^(#\/|blob:)/);
  }

  async signIn(name, password) {
    await this.fill('Sign in', { name, password });
  }
}

module.exports = { api, get, open, text };
