// Checks of the web UI in Chromium, against one node.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const amqp = require('amqplib');
const { check, run, until } = require('../conformance/javascript/checks.js');
const { Tab, WIDTHS, THEMES, launch, version, API } = require('./browser.js');
const pictures = require('./pictures.js');

const enc = encodeURIComponent;
const UPDATE = process.env.UPDATE === '1';
/** Number of queues in the check of long lists. It takes a minute with 10,000. */
const QUEUES = Number(process.env.QUEUES ?? 1000);

/** A request to the API that does not come from a page. */
async function api(method, of, body) {
  const response = await fetch(new URL(`api/${of}`, API), {
    method,
    headers: { Authorization: `Basic ${Buffer.from('guest:guest').toString('base64')}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, body: text === '' ? null : JSON.parse(text) };
}

/** Waits until the API's response satisfies a condition. */
const holds = (of, matches, what) =>
  until(async () => {
    const { status, body } = await api('GET', of);
    return status === 200 && matches(body);
  }, what);

const gone = (of) => until(async () => (await api('GET', of)).status === 404, `${of} is gone`);

async function apply(method, of, body) {
  const { status, body: response } = await api(method, of, body);
  assert.ok(status < 300, `${method} ${of}: ${status} ${JSON.stringify(response)}`);
}

let browser;
let client;
let channelName;
const tabs = {};

/** The objects that the pages show. */
async function declareObjects() {
  for (const [name, type] of [
    ['invoices', 'classic'],
    ['orders', 'quorum'],
    ['orders.audit', 'classic'],
    ['events', 'stream'],
  ]) {
    await apply('PUT', `queues/%2F/${name}`, { durable: true, arguments: { 'x-queue-type': type } });
  }
  await apply('PUT', 'exchanges/%2F/shop', { type: 'topic', durable: true });
  await apply('PUT', 'exchanges/%2F/shop.audit', { type: 'fanout', durable: true });
  await apply('POST', 'bindings/%2F/e/shop/q/orders', { routing_key: 'order.#', arguments: {} });
  await apply('POST', 'bindings/%2F/e/shop/q/invoices', { routing_key: 'invoice.*', arguments: {} });
  await apply('POST', 'bindings/%2F/e/shop/e/shop.audit', { routing_key: '#', arguments: {} });
  await apply('POST', 'bindings/%2F/e/shop.audit/q/orders.audit', { routing_key: '', arguments: {} });
  await apply('PUT', 'policies/%2F/limit', { pattern: '^orders', 'apply-to': 'queues', priority: 1, definition: { 'max-length': 100_000 } });
  await apply('PUT', 'operator-policies/%2F/roof', { pattern: '.*', 'apply-to': 'queues', priority: 0, definition: { 'max-length': 1_000_000 } });
  await apply('PUT', 'users/clerk', { password: 'secret', tags: 'management' });
  await apply('PUT', 'permissions/%2F/clerk', { configure: '', write: '^shop$', read: '^orders' });
  await apply('PUT', 'vhost-limits/%2F/max-queues', { value: 100_000 });
  for (let n = 1; n <= 3; n += 1) {
    await apply('POST', 'exchanges/%2F/shop/publish', {
      routing_key: 'order.new',
      payload: JSON.stringify({ order: n, items: ['horn', 'post'] }),
      payload_encoding: 'string',
      properties: { content_type: 'application/json', headers: { tenant: 'a' } },
    });
  }
  client = await amqp.connect('amqp://guest:guest@127.0.0.1:5672', { clientProperties: { connection_name: 'shop' } });
  const channel = await client.createConfirmChannel();
  await channel.prefetch(10);
  await channel.consume('invoices', () => {}, { consumerTag: 'printer' });
  const [{ name }] = (await api('GET', 'channels')).body;
  channelName = name;
}

check('the browser signs in at both widths and in both themes', async () => {
  await declareObjects();
  browser = await launch();
  for (const width of WIDTHS) {
    const tab = await Tab.open(browser, width);
    tabs[width] = tab;
    assert.deepEqual(await tab.axe(), [], `the page to sign in, ${width}`);
    await tab.signIn();
    tab.clean(`the page to sign in, ${width}`);
  }
});

/** The main operations, as a person does them. */
async function operate(tab, suffix) {
  const queue = `made-${suffix}`;
  const exchange = `post-${suffix}`;
  const { page } = tab;
  await tab.go('#/queues', 'Queues');
  await tab.unfold('Add a queue');
  await tab.submit('Add a queue', { name: queue, type: 'classic', arguments: [['x-max-length', '100']] });
  await tab.says('The queue is declared.');
  await holds(`queues/%2F/${queue}`, (q) => q.type === 'classic' && q.arguments['x-max-length'] === 100, 'the queue');

  await tab.go('#/exchanges', 'Exchanges');
  await tab.unfold('Add an exchange');
  await tab.submit('Add an exchange', { name: exchange, type: 'topic' });
  await holds(`exchanges/%2F/${exchange}`, (x) => x.type === 'topic', 'the exchange');
  await tab.go(`#/exchanges/%2F/${exchange}`, `Exchange ${exchange}`);
  await tab.unfold('Add a binding from this exchange');
  await tab.submit('Add a binding from this exchange', { other: queue, routing_key: 'a.#' });
  await holds(`bindings/%2F/e/${exchange}/q/${queue}`, (all) => all.length === 1 && all[0].routing_key === 'a.#', 'the binding');
  await tab.unfold('Publish a message');
  await tab.submit('Publish a message', { routing_key: 'a.b', payload: '{"n": 7}', headers: [['tenant', 'b']] });
  await tab.says('confirmed by every queue');
  await holds(`queues/%2F/${queue}`, (q) => q.messages_ready === 1, 'the message');

  await tab.go(`#/queues/%2F/${queue}`, `Queue ${queue}`);
  await tab.unfold('Browse messages');
  await tab.submit('Browse messages', { count: '5' });
  await page.getByRole('button', { name: /^Delete message/ }).waitFor();
  assert.match(await page.locator('article.message pre').first().innerText(), /"n": 7/);
  assert.deepEqual(await tab.overflow(), []);
  await api('PUT', `queues/%2F/${queue}-moved`, {});
  await page.getByRole('checkbox', { name: /^Choose message/ }).check();
  await tab.unfold('Move messages to another queue');
  await tab.submit('Move messages', { to: `${queue}-moved`, which: 'chosen' });
  await tab.says('1 messages are moved.');
  await holds(`queues/%2F/${queue}-moved`, (q) => q.messages_ready === 1, 'the message is moved');
  await api('POST', `queues/%2F/${queue}-moved/messages/move`, { destination_queue: queue });
  await api('DELETE', `queues/%2F/${queue}-moved`);
  await holds(`queues/%2F/${queue}`, (q) => q.messages_ready === 1, 'the message is back');
  await api('POST', 'exchanges/%2F/amq.default/publish', { routing_key: queue, payload: 'extra', payload_encoding: 'string', properties: {} });
  await tab.submit('Browse messages', { count: '5' });
  await page.getByRole('button', { name: /^Delete message/ }).nth(1).click();
  await tab.confirm('Delete');
  await holds(`queues/%2F/${queue}`, (q) => q.messages_ready === 1, 'the second message is deleted');
  await tab.unfold('Browse messages');
  await tab.unfold('Get messages');
  await tab.submit('Get messages', { count: '5' });
  await page.getByRole('heading', { name: 'Message 1', exact: true }).waitFor();
  assert.match(await page.locator('article.message pre').first().innerText(), /"n": 7/);
  assert.deepEqual(await tab.overflow(), []);
  await tab.submit('Get messages', { ackmode: 'ack_requeue_false' });
  await tab.confirm('Get messages');
  await holds(`queues/%2F/${queue}`, (q) => q.messages === 0, 'the message is taken');
  await api('POST', 'exchanges/%2F/amq.default/publish', { routing_key: queue, payload: 'x', payload_encoding: 'string', properties: {} });
  await tab.unfold('Purge or delete');
  // The page must not fail because of a request that is slower than the deletion of the queue.
  const requested = await tab.deleteBeforeGet(`/api/queues/%2F/${queue}`);
  await page.getByRole('button', { name: 'Purge messages' }).click();
  await tab.confirm('Purge');
  await holds(`queues/%2F/${queue}`, (q) => q.messages === 0, 'the queue is purged');
  await requested();
  await tab.submit('Delete the queue', {});
  await tab.confirm('Delete');
  await gone(`queues/%2F/${queue}`);
  await tab.heading('Queues');

  await tab.go('#/users', 'Users');
  await tab.unfold('Add a user');
  await tab.submit('Add a user', { name: `user-${suffix}`, password: 'secret', again: 'secret', tags: 'management' });
  await holds(`users/user-${suffix}`, (u) => u.tags.join() === 'management', 'the user');
  await tab.go(`#/users/user-${suffix}`, `User user-${suffix}`);
  await tab.unfold('Set permissions in a virtual host');
  await tab.submit('Set permissions', { configure: '^made' });
  await holds(`permissions/%2F/user-${suffix}`, (p) => p.configure === '^made', 'the permissions');
  await page.getByRole('button', { name: 'Delete user' }).click();
  await tab.confirm('Delete');
  await gone(`users/user-${suffix}`);
  // The page leaves for the list when it gets the answer.
  await tab.heading('Users');

  await tab.go('#/policies', 'Policies');
  await tab.unfold('Add a policy');
  await tab.submit('Add: policy', { name: `policy-${suffix}`, pattern: '^none$', definition: [['max-length', '50']] });
  await holds(`policies/%2F/policy-${suffix}`, (p) => p.definition['max-length'] === 50, 'the policy');
  await tab.go(`#/policies/%2F/policy-${suffix}`, `Policy policy-${suffix}`);
  await page.getByRole('button', { name: 'Delete policy' }).click();
  await tab.confirm('Delete');
  await gone(`policies/%2F/policy-${suffix}`);
  await tab.heading('Policies');

  await tab.go(`#/exchanges/%2F/${exchange}`, `Exchange ${exchange}`);
  await page.getByRole('button', { name: 'Delete exchange' }).click();
  await tab.confirm('Delete');
  await gone(`exchanges/%2F/${exchange}`);
  await tab.heading('Exchanges');
  await tab.settled();
  tab.clean('the operations');
}

for (const width of WIDTHS) {
  check(`queue, binding, message, user and policy are made and deleted, ${width} pixels wide`, () => operate(tabs[width], width));
}

check('messages of a queue are shown as JSON or text, searched, downloaded and copied', async () => {
  const tab = tabs[1280];
  const { page } = tab;
  await tab.go('#/queues/%2F/orders', 'Queue orders');
  await tab.unfold('Get messages');
  await tab.submit('Get messages', { count: '3' });
  const shown = page.locator('article.message');
  await shown.nth(2).waitFor();
  assert.match(await shown.first().locator('pre').innerText(), /\n {2}"items": \[\n {4}"horn",/);
  await page.getByLabel('View').selectOption('text');
  assert.doesNotMatch(await shown.first().locator('pre').innerText(), /\n/);
  await page.getByLabel('View').selectOption('hex');
  assert.match(await shown.first().locator('pre').innerText(), /^000000 {2}7b 22 6f/);
  assert.match(await shown.first().locator('.headers').innerText(), /tenant\s+string\s+a/);
  await page.getByLabel('Search the messages').fill('"ORDER":2');
  await page.getByText('1 of 3 messages').waitFor();
  assert.equal(await shown.count(), 1);
  const [one] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download the payload of message 2' }).click()]);
  assert.equal(one.suggestedFilename(), 'orders-2.json');
  assert.deepEqual(JSON.parse(fs.readFileSync(await one.path(), 'utf8')).order, 2);
  const [all] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download all as JSON' }).click()]);
  assert.equal(JSON.parse(fs.readFileSync(await all.path(), 'utf8')).length, 1);
  await tab.unfold('Copy these 1 messages to another queue');
  await tab.submit('Copy messages', { queue: 'none' });
  await tab.says('has no queue none');
  await apply('PUT', 'queues/%2F/copies', { durable: true, arguments: { 'x-queue-type': 'classic' } });
  await tab.submit('Copy messages', { queue: 'copies' });
  await holds('queues/%2F/copies', (q) => q.messages_ready === 1, 'the copy');
  const { body: copies } = await api('POST', 'queues/%2F/copies/get', { count: 1, ackmode: 'ack_requeue_false', encoding: 'auto' });
  assert.deepEqual([copies[0].payload, copies[0].properties.headers.tenant], [JSON.stringify({ order: 2, items: ['horn', 'post'] }), 'a']);
  await apply('DELETE', 'queues/%2F/copies');
  assert.deepEqual(await tab.axe(), []);
});

check('a chart has axes, a selectable range and the values at the pointer', async () => {
  const tab = tabs[1280];
  const { page } = tab;
  await tab.go('#/', 'Overview');
  const plot = page.locator('.plot', { hasText: 'Messages in queues' });
  await page.getByLabel('Charts show').selectOption('60');
  await until(async () => {
    await page.getByLabel('Charts show').selectOption('300');
    await page.getByLabel('Charts show').selectOption('60');
    await tab.settled();
    return (await plot.locator('polyline').count()) > 0;
  }, 'two samples');
  assert.ok((await plot.locator('svg text').count()) >= 4, 'labels of both axes');
  const { x, y, width, height } = await plot.locator('svg').boundingBox();
  await page.mouse.move(x + width - 2, y + height / 2);
  await plot.locator('.cursor').waitFor({ state: 'attached' });
  assert.match(await plot.locator('figcaption').innerText(), /\d\d:\d\d:\d\d/);
  const requested = page.waitForRequest((request) => request.url().includes('lengths_age=86400&lengths_incr=1800'));
  await page.getByLabel('Charts show').selectOption('86400');
  await requested;
  // The node has not run for so long: there is nothing, not a line at zero.
  await page.mouse.move(x + 2, y + height / 2);
  await plot.getByText('no samples at this time').waitFor();
  assert.match(await plot.locator('.legend').innerText(), /ready –/);
  await page.getByLabel('Charts show').selectOption('300');
});

check('filter, order and columns of a list are in the address and survive a reload', async () => {
  const tab = tabs[1280];
  const { page } = tab;
  const titles = () => page.locator('thead th').allInnerTexts();
  await tab.go('#/queues', 'Queues');
  await page.getByLabel('Filter queues by name').fill('order');
  await tab.says(/2 of \d+/);
  await page.getByRole('button', { name: 'Ready' }).click();
  await page.getByLabel('Columns of queues').click();
  await page.getByRole('checkbox', { name: 'Virtual host' }).uncheck();
  await page.getByRole('checkbox', { name: 'Type' }).uncheck();
  assert.deepEqual((await titles()).slice(0, 2), ['Name', 'Features']);
  await until(() => page.url().includes('columns='), 'the address');
  assert.match(page.url(), /#\/queues\?name=order&sort=messages_ready&columns=Name/);
  await page.reload();
  await tab.says(/2 of \d+/);
  assert.deepEqual((await titles()).slice(0, 2), ['Name', 'Features']);
  assert.equal(await page.getByLabel('Filter queues by name').inputValue(), 'order');
  await page.getByLabel('Refresh').selectOption('0');
  await tab.loadAxe();
  // The menu leads to the same view.
  await tab.go('#/exchanges', 'Exchanges');
  await page.getByRole('link', { name: 'Queues', exact: true }).click();
  await tab.says(/2 of \d+/);
  await page.getByLabel('Filter queues by name').fill('');
  await page.getByLabel('Columns of queues').click();
  await page.getByRole('button', { name: 'Default columns' }).click();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Default columns' }).waitFor({ state: 'hidden' });
  await page.getByRole('button', { name: 'Ready' }).click();
  await page.getByRole('button', { name: 'Ready' }).click();
  await until(() => page.url().endsWith('#/queues'), 'an address without parameters');
});

check('the navigation has one line; behind a button on a phone', async () => {
  const wide = tabs[1280].page;
  assert.ok(await wide.evaluate(() => document.querySelector('header').getBoundingClientRect().height < 50), 'one line');
  await wide.getByRole('button', { name: 'Admin' }).click();
  assert.deepEqual(await tabs[1280].axe(), []);
  await wide.getByRole('link', { name: 'Policies', exact: true }).click();
  await tabs[1280].heading('Policies');
  await wide.getByRole('link', { name: 'Users', exact: true }).waitFor({ state: 'hidden' });
  await wide.getByRole('button', { name: 'Admin' }).press('Enter');
  await wide.getByRole('link', { name: 'Users', exact: true }).waitFor();
  await wide.keyboard.press('Escape');
  await wide.getByRole('link', { name: 'Users', exact: true }).waitFor({ state: 'hidden' });
  // The widths at which the layout changes.
  for (const width of [1266, 1265, 761, 760]) {
    await wide.setViewportSize({ width, height: 800 });
    assert.deepEqual(await tabs[1280].overflow(), [], `${width} pixels`);
    assert.ok(await wide.evaluate(() => document.querySelector('header').getBoundingClientRect().height < 50), `one line of ${width} pixels`);
  }
  await wide.setViewportSize({ width: 1280, height: 800 });
  const phone = tabs[390].page;
  await phone.getByRole('link', { name: 'Nodes', exact: true }).waitFor({ state: 'hidden' });
  await phone.getByRole('button', { name: 'Menu' }).click();
  assert.deepEqual(await tabs[390].axe(), []);
  assert.deepEqual(await tabs[390].overflow(), []);
  await phone.getByRole('link', { name: 'Users', exact: true }).click();
  await tabs[390].heading('Users');
  await phone.getByRole('link', { name: 'Nodes', exact: true }).waitFor({ state: 'hidden' });
});

/** Address, heading, and whether the page is compared with a stored picture. */
const pages = () => [
  ['#/', 'Overview', 'overview'],
  ['#/connections', 'Connections'],
  [`#/connections/${enc(channelName.replace(/ \(1\)$/, ''))}`, `Connection ${channelName.replace(/ \(1\)$/, '')}`],
  ['#/channels', 'Channels'],
  ['#/consumers', 'Consumers'],
  [`#/channels/${enc(channelName)}`, `Channel ${channelName}`],
  ['#/exchanges', 'Exchanges', 'exchanges'],
  ['#/exchanges/%2F/shop', 'Exchange shop', 'exchange'],
  ['#/queues', 'Queues', 'queues'],
  ['#/queues/%2F/orders', 'Queue orders', 'queue'],
  ['#/queues/%2F/events', 'Queue events'],
  ['#/stream', 'Streams'],
  ['#/mqtt', 'MQTT'],
  ['#/topology', 'Topology', 'topology'],
  ['#/nodes', 'Nodes'],
  ['#/nodes/n1', 'Node n1'],
  ['#/vhosts', 'Virtual hosts'],
  ['#/vhosts/%2F', 'Virtual host /'],
  ['#/users', 'Users', 'users'],
  ['#/users/clerk', 'User clerk'],
  ['#/policies', 'Policies', 'policies'],
  ['#/policies/%2F/limit', 'Policy limit'],
  ['#/operator_policies/%2F/roof', 'Operator policy roof'],
  ['#/limits', 'Limits'],
  ['#/feature-flags', 'Feature flags'],
  ['#/definitions', 'Definitions'],
  ['#/cluster-name', 'Cluster name'],
  ['#/none', 'Page not found'],
];

/** Opens the forms of a page, so that they are checked, too. */
const unfoldAll = (page) =>
  page.evaluate(() => {
    for (const folded of document.querySelectorAll('details.folded')) folded.open = true;
  });

for (const width of WIDTHS) {
  check(`every page loads without errors, fits the width and has no violation of axe-core, ${width} pixels wide`, async () => {
    const tab = tabs[width];
    const found = [];
    for (const [hash, heading] of pages()) {
      await tab.go(hash, heading);
      await unfoldAll(tab.page);
      await tab.settled();
      for (const violation of await tab.axe()) found.push(`${hash}: ${violation}`);
      for (const element of await tab.overflow()) found.push(`${hash}: wider than the window: ${element}`);
      for (const problem of tab.problems.splice(0)) found.push(`${hash}: ${problem}`);
    }
    assert.deepEqual(found, []);
  });
}

/** Replaces figures that change, so that pictures show only the layout. */
const freeze = (page) =>
  page.evaluate(() => {
    for (const element of document.querySelectorAll('td.number, .totals b, .legend b, .used > span, .figure')) element.textContent = '0';
    for (const meter of document.querySelectorAll('meter')) meter.value = 0.2;
    for (const line of document.querySelectorAll('.plot svg > *')) line.remove();
    window.scrollTo(0, 0);
    document.activeElement?.blur();
  });

check('pages look like the stored pictures', async () => {
  const now = version();
  const stored = pictures.storedVersion();
  if (UPDATE) pictures.replaceAll(now);
  else if (stored !== now) {
    console.log(`NOT CHECKED: pictures of the web UI, because Chromium ${stored} made them and this is ${now}; UPDATE=1 test/browser/run replaces them`);
    return;
  }
  const found = [];
  for (const width of WIDTHS) {
    const tab = tabs[width];
    for (const [hash, heading, name] of pages()) {
      if (!name) continue;
      await tab.go(hash, heading);
      await freeze(tab.page);
      for (const theme of THEMES) {
        await tab.page.emulateMedia({ colorScheme: theme });
        const screenshot = await tab.page.screenshot({ animations: 'disabled', caret: 'hide' });
        const file = `${name}-${width}-${theme}`;
        if (UPDATE) pictures.store(file, screenshot);
        else found.push(pictures.compare(file, screenshot));
      }
    }
  }
  assert.deepEqual(found.filter((reason) => reason), []);
});

check('pages render a part of many queues', async () => {
  const queues = Array.from({ length: QUEUES }, (_, n) => ({ vhost: '/', name: `many-${n}`, durable: true, auto_delete: false, arguments: { 'x-queue-type': 'classic' } }));
  for (let at = 0; at < QUEUES; at += 500) await apply('POST', 'definitions', { queues: queues.slice(at, at + 500) });
  const tab = tabs[1280];
  const session = await tab.page.context().newCDPSession(tab.page);
  await session.send('Performance.enable');
  const busy = async () => (await session.send('Performance.getMetrics')).metrics.find(({ name }) => name === 'TaskDuration').value;
  for (const [hash, heading, rows] of [
    ['#/queues', 'Queues', 50],
    ['#/queues?sort=messages&desc=1', 'Queues', 50],
    ['#/topology', 'Topology', 4],
    ['#/', 'Overview', 1],
  ]) {
    await tab.go('#/none', 'Page not found');
    const before = await busy();
    await tab.go(hash, heading);
    const seconds = (await busy()) - before;
    await until(async () => (await tab.page.locator('tbody tr').count()) === rows, `${rows} rows at ${hash}`);
    const elements = await tab.page.evaluate(() => document.querySelectorAll('*').length);
    assert.ok(elements < 2000, `${hash} has ${elements} elements`);
    console.log(`       ${hash} with ${QUEUES} queues: ${(1000 * seconds).toFixed(0)} ms of processor time in the page`);
  }
  tab.clean('many queues');
});

check('user signs in at an identity provider, whose tokens are refreshed, and out', async () => {
  const tab = await Tab.open(browser, 1280, process.env.WITH_PROVIDER);
  const { page } = tab;
  const counts = async () => (await fetch(new URL('counts', process.env.PROVIDER))).json();
  const verb = 'Sign in with the identity provider';
  const atProvider = async (answer) => {
    await page.getByRole('button', { name: verb, exact: true }).click();
    await tab.heading('Provider');
    await page.getByRole('link', { name: answer, exact: true }).click();
  };
  assert.equal(await page.getByLabel('Password').count(), 0);
  assert.deepEqual(await tab.axe(), []);
  const refused = await fetch(new URL('api/whoami', process.env.WITH_PROVIDER), { headers: { Authorization: `Basic ${btoa('guest:guest')}` } });
  assert.equal(refused.status, 401);
  assert.match((await refused.json()).reason, /passwords are disabled/);

  await atProvider('Deny');
  await tab.says('The identity provider refuses the sign-in: Alice said no');
  assert.equal(new URL(page.url()).search, '');
  await page.goto(`${process.env.WITH_PROVIDER}#/queues`);
  await tab.heading('Posthorn');
  await atProvider('Allow');
  await tab.heading('Queues');
  assert.equal(page.url(), `${process.env.WITH_PROVIDER}#/queues`);
  assert.equal(await page.locator('header .user').textContent(), 'alice');
  assert.deepEqual(await counts(), { authorization_code: 1, refresh_token: 0, ended: 0 });
  // The first token is valid for 31 s, and refreshed 30 s before its end.
  await until(async () => {
    await tab.go('#/exchanges', 'Exchanges');
    return (await counts()).refresh_token > 0;
  }, 'the token is refreshed');
  await page.reload();
  await tab.heading('Exchanges');
  assert.equal(await page.locator('header .user').textContent(), 'alice');

  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: verb, exact: true }).waitFor();
  await until(async () => (await counts()).ended === 1, 'the session at the provider has ended');
  assert.deepEqual(await page.evaluate(() => Object.keys(window.sessionStorage)), []);
  await page.context().close();
});

check('the end: the client and the browser leave', async () => {
  await client.close();
  await browser.close();
});

run('browser');
