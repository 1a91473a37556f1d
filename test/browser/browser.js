// A real Chromium with one tab for each width.
'use strict';

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { chromium } = require('playwright-core');
const { until } = require('../conformance/javascript/checks.js');

const API = process.env.API;
const PATIENCE = 60_000; // ms

/** Widths in pixels, of a phone and of a notebook, and the heights of their windows. */
const WIDTHS = [390, 1280];
const HEIGHTS = { 390: 844, 1280: 800 };
const THEMES = ['light', 'dark'];

/** The version of the installed browser. */
const version = () => /[\d.]+/.exec(execFileSync(process.env.CHROMIUM, ['--version'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }))[0];

const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM,
    // Text and colours look the same on every machine. The tests may run as root, where Chromium has no sandbox.
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-lcd-text', '--font-render-hinting=none', '--force-color-profile=srgb', '--hide-scrollbars'],
  });

/** The stylesheet, with the font of the stored pictures. */
const FONT = '\n* { font-family: "DejaVu Sans" !important; }\n';

class Tab {
  constructor(page) {
    this.page = page;
    this.problems = [];
    this.pending = new Set();
    page.setDefaultTimeout(PATIENCE);
    page.on('console', (message) => {
      // A failed health check is a response with status 503. The browser reports it like a missing file.
      const isHealthCheck = message.location().url.includes('/api/health/checks/') && message.text().includes('503');
      if (message.type() === 'error' && !isHealthCheck) this.problems.push(`${message.text()} (${message.location().url})`);
    });
    page.on('pageerror', (error) => this.problems.push(error.stack ?? String(error)));
    page.on('request', (request) => this.pending.add(request));
    for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => this.pending.delete(request));
  }

  static async open(browser, width, address = API) {
    const context = await browser.newContext({
      viewport: { width, height: HEIGHTS[width] },
      colorScheme: 'light',
      reducedMotion: 'reduce',
      locale: 'en-GB',
      timezoneId: 'UTC',
    });
    if (process.env.UI) {
      await context.route('**/ui/**', (route) => route.fulfill({ path: path.join(process.env.UI, new URL(route.request().url()).pathname.replace('/ui/', '')) }));
    }
    await context.route('**/ui/style.css', async (route) => {
      const body = process.env.UI ? fs.readFileSync(path.join(process.env.UI, 'style.css'), 'utf8') : await (await route.fetch()).text();
      await route.fulfill({ contentType: 'text/css', body: body + FONT });
    });
    const tab = new Tab(await context.newPage());
    await tab.page.goto(address);
    await tab.heading('Posthorn');
    await tab.loadAxe();
    return tab;
  }

  async signIn() {
    await this.page.getByLabel('User').fill('guest');
    await this.page.getByLabel('Password').fill('guest');
    await this.page.getByRole('button', { name: 'Sign in' }).click();
    await this.heading('Overview');
    // The pages load when the tests expect it, not periodically.
    await this.page.getByLabel('Refresh').selectOption('0');
  }

  async heading(text) {
    await this.page.getByRole('heading', { level: 1, name: text, exact: true }).waitFor();
  }

  /** Opens a page and waits until it has loaded its data. */
  async go(hash, heading) {
    // A page that is open already has to be opened anew.
    await this.page.evaluate((to) => {
      if (window.location.hash === to) window.location.hash = '#/leave';
      window.location.hash = to;
    }, hash);
    await this.heading(heading);
    await this.settled();
  }

  /**
   * Holds back the next GET of an object until the object is deleted: the node gets the DELETE first, and the page gets the response to
   * the DELETE last. Returns a function that waits until there is such a GET.
   */
  async deleteBeforeGet(pathname) {
    let held = null;
    await this.page.route(
      (url) => url.pathname === pathname,
      async (route) => {
        const method = route.request().method();
        if (method === 'GET' && held === null) {
          held = route;
          return;
        }
        if (method !== 'DELETE') return route.fallback();
        const response = await route.fetch();
        // The page may have cancelled it.
        await held.continue().catch(() => {});
        await held.request().response();
        await route.fulfill({ response });
      },
    );
    return () => until(() => held !== null, `${pathname} is requested`);
  }

  /** Waits until no request is pending and the last response is on the page. */
  async settled() {
    await until(async () => {
      if (this.pending.size > 0) return false;
      // A response is rendered in the next frames, and a component that appears then may send a request of its own.
      for (let frame = 0; frame < 4 && this.pending.size === 0; frame += 1) {
        await this.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))));
      }
      return this.pending.size === 0;
    }, 'no request is pending');
  }

  /** Fails if the browser has reported an error since the last call. */
  clean(what) {
    assert.deepEqual(this.problems.splice(0), [], `${what}: errors in the browser's console`);
  }

  form(label) {
    return this.page.getByRole('form', { name: label, exact: true });
  }

  async unfold(title) {
    await this.page.locator('details.folded > summary', { hasText: new RegExp(`^${title}$`) }).click();
  }

  /** Fills the fields of a form by their names, rows as [[key, value]], and submits it. */
  async submit(label, values) {
    const form = this.form(label);
    for (const [name, value] of Object.entries(values)) {
      const field = form.locator(`[name="${name}"]`);
      if (Array.isArray(value)) await this.rows(form, name, value);
      else if (typeof value === 'boolean') await field.setChecked(value);
      else if ((await field.evaluate((element) => element.tagName)) === 'SELECT') await field.selectOption(value);
      else await field.fill(value);
    }
    await form.locator('[type=submit]').click();
  }

  async rows(form, name, rows) {
    const all = form.locator(`.rows[aria-labelledby$="-${name}-label"] .row`);
    for (const [at, [key, value]] of rows.entries()) {
      await all.nth(at).locator('input').first().fill(key);
      await all.nth(at).locator('input').nth(1).fill(value);
    }
  }

  /** Confirms the pending question. */
  async confirm(verb) {
    const dialog = this.page.getByRole('dialog');
    await dialog.getByRole('button', { name: verb, exact: true }).click();
    await dialog.waitFor({ state: 'detached' });
  }

  async says(text) {
    await this.page.getByText(text).first().waitFor();
  }

  /** The violations that axe-core finds on the page in both themes. A theme changes only colours: one rule is about them. */
  async axe() {
    const found = [];
    for (const theme of THEMES) {
      await this.page.emulateMedia({ colorScheme: theme });
      const violations = await this.page.evaluate(
        async (rules) => {
          const { violations } = await window.axe.run(document, { resultTypes: ['violations'], ...rules });
          return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(' | ')}`);
        },
        theme === 'light' ? {} : { runOnly: ['color-contrast'] },
      );
      found.push(...violations.map((violation) => `${theme}: ${violation}`));
    }
    await this.page.emulateMedia({ colorScheme: 'light' });
    return found;
  }

  /** Loads axe-core past the content security policy, which applies to the page. */
  async loadAxe() {
    await this.page.evaluate(fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8'));
  }

  /** Elements that make the document wider than the window. */
  overflow() {
    return this.page.evaluate(() => {
      const { clientWidth, scrollWidth } = document.documentElement;
      if (scrollWidth <= clientWidth) return [];
      const beyond = [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > clientWidth + 0.5);
      // The contents of an element that scrolls are allowed to be wider.
      const outside = beyond.filter((element) => !element.closest('.scroll'));
      const names = (outside.length > 0 ? outside : beyond).map((element) => `${element.tagName.toLowerCase()}.${element.className}`);
      return [`${scrollWidth} pixels`, ...names.slice(0, 5)];
    });
  }
}

module.exports = { Tab, WIDTHS, THEMES, launch, version, API };
