// Tests of the web UI's pages against a cluster of three nodes: pages show the API's data and apply changes through it.
'use strict';

const assert = require('node:assert/strict');
const amqp = require('amqplib');
const { check, run, until } = require('../javascript/checks.js');
const { api, get, open, text } = require('./browser.js');

const HOSTILE = '<img src=x onerror="window.hurt=1"> & </td><script>window.hurt=1</script>';
const enc = encodeURIComponent;

let page;

const status = async (of) => (await api('GET', of)).status;

/** Waits until the API's response satisfies a condition. */
const holds = (of, matches, what) =>
  until(async () => {
    const { status, body } = await api('GET', of);
    return status === 200 && matches(body);
  }, what);

const gone = (of) => until(async () => (await status(of)) === 404, `${of} is gone`);

async function declare(name, type = 'classic', vhost = '/') {
  const { status } = await api('PUT', `queues/${enc(vhost)}/${enc(name)}`, { durable: true, arguments: { 'x-queue-type': type } });
  assert.ok(status < 300, `${name}: ${status}`);
}

async function publish(queue, payload, properties = {}) {
  const { body } = await api('POST', 'exchanges/%2F/amq.default/publish', { routing_key: queue, payload, payload_encoding: 'string', properties });
  assert.equal(body.routed, true);
}

/**
 * Repeats an action until the page shows `well`. A membership change is refused if the queue would lose its majority, for example while it
 * is new or its leader moves.
 */
async function insist(does, well) {
  const refused = 'would lose its majority';
  await until(async () => {
    await does();
    await until(() => page.text().includes(well) || page.text().includes(refused), `"${well}" or "${refused}"`);
    if (page.text().includes(well)) return true;
    for (const button of page.document.querySelectorAll('.notices button')) button.click();
    return false;
  }, well);
}

check('sign in: a wrong password is refused with the reason, a right one opens the overview', async () => {
  page = await open();
  await page.find('form', 'Sign in');
  await page.signIn('guest', 'wrong');
  await page.says('Login failed');
  assert.equal(page.window.sessionStorage.length, 0);
  await page.signIn('guest', 'guest');
  await page.find('h1', 'Overview');
  assert.equal(page.document.cookie, '');
  assert.equal(page.window.localStorage.length, 0);
});

check('the overview shows the totals, nodes and ports that the API has', async () => {
  await declare('seen', 'quorum');
  await publish('seen', 'one');
  await page.go('#/', 'Overview');
  const overview = await get('overview');
  await page.says(overview.cluster_name, 'n1', 'n2', 'n3', 'Messages in queues', 'amqp');
  await until(() => text(page.document.querySelector('.totals')).includes(`Queues ${overview.object_totals.queues}`), 'the number of queues');
  await page.says('No problems');
  for (const word of ['n1', 'n2', 'n3']) await page.row(word);
});

check('names of clients are text, never markup', async () => {
  await declare(HOSTILE);
  await api('POST', `bindings/%2F/e/amq.direct/q/${enc(HOSTILE)}`, { routing_key: HOSTILE, arguments: { [HOSTILE]: HOSTILE } });
  await api('PUT', `policies/%2F/${enc(HOSTILE)}`, { pattern: '^<img', 'apply-to': 'queues', definition: { 'max-length': 10 } });
  await publish(HOSTILE, HOSTILE, { headers: { [HOSTILE]: HOSTILE }, content_type: HOSTILE });
  await page.go('#/queues', 'Queues');
  await page.row(HOSTILE);
  page.clean();
  await page.go(`#/queues/%2F/${enc(HOSTILE)}`, `Queue ${HOSTILE}`);
  await page.says('bindings of this queue', 'max-length');
  await page.row(HOSTILE);
  await page.unfold('Get messages');
  await page.fill('Get messages', { count: '1' });
  await page.says('Message 1');
  assert.equal(page.document.querySelector('pre').textContent, HOSTILE);
  page.clean();
  await page.go(`#/policies/%2F/${enc(HOSTILE)}`, `Policy ${HOSTILE}`);
  await page.go('#/policies', 'Policies');
  await page.row(HOSTILE);
  page.clean();
  // An address from an untrusted link.
  await page.go(`#/${enc(HOSTILE)}`, 'Page not found');
  await page.go('#/queues/%E0%A4/x', 'Page not found');
  page.clean();
  assert.equal(page.window.hurt, undefined);
  await api('DELETE', `policies/%2F/${enc(HOSTILE)}`);
  await api('DELETE', `queues/%2F/${enc(HOSTILE)}`);
});

check('a list is cut into pages, filtered and sorted by the node', async () => {
  for (let n = 0; n < 60; n += 1) await declare(`many-${String(n).padStart(2, '0')}`);
  await publish('many-33', 'x');
  await page.go('#/queues', 'Queues');
  const filter = await page.find('input[type=search]', 'Filter queues by name');
  page.enter(filter, 'many-');
  await page.says('60 of ', 'Page');
  const rows = () => [...page.document.querySelectorAll('tbody tr')].map((row) => text(row.querySelectorAll('td')[1]));
  await until(() => rows().length === 50, 'a page of 50');
  await page.press('Next');
  await until(() => rows().join() === Array.from({ length: 10 }, (_, n) => `many-${50 + n}`).join(), 'the second page');
  await page.press('Ready');
  await page.press('Ready');
  await until(() => rows()[0] === 'many-33', 'the longest queue comes first');
  await holds('queues/%2F/many-33', (q) => q.head_message_age_seconds >= 2, 'a message that is not new');
  await publish('many-44', 'x');
  await page.press('Age');
  await page.press('Age');
  await until(() => rows().slice(0, 2).join() === 'many-33,many-44', 'the queue with the oldest message comes first');
  page.enter(await page.find('input[type=search]', 'Filter queues by name'), '^many-0[12]$');
  page.enter(await page.find('.bar input[type=checkbox]'), true);
  await until(() => rows().sort().join() === 'many-01,many-02', 'a regular expression');
  page.enter(await page.find('input[type=search]', 'Filter queues by name'), '(');
  await page.says('Pagination parameters are invalid');
  page.enter(await page.find('input[type=search]', 'Filter queues by name'), '');
  await page.silent('Pagination parameters are invalid');
  for (let n = 0; n < 60; n += 1) await api('DELETE', `queues/%2F/many-${String(n).padStart(2, '0')}`);
});

check('a queue: declare, publish, look, take, purge, delete', async () => {
  // The heading is there before the page, if a list with the same heading was open.
  await page.go('#/', 'Overview');
  await page.go('#/queues', 'Queues');
  await page.unfold('Add a queue');
  await page.fill('Add a queue', {
    name: 'made',
    type: 'classic',
    arguments: [
      ['x-max-length', '100'],
      ['x-overflow', 'reject-publish'],
    ],
  });
  await holds(
    'queues/%2F/made',
    (q) => q.type === 'classic' && q.arguments['x-max-length'] === 100 && q.arguments['x-overflow'] === 'reject-publish',
    'the queue',
  );
  await page.says('The queue is declared.');
  await page.fill('Add a queue', { name: 'made', type: 'quorum' });
  await page.says('inequivalent arg');
  await page.go('#/queues/%2F/made', 'Queue made');
  await page.unfold('Publish a message');
  await page.fill('Publish a message', { payload: 'grüße', headers: [['n', '7', 'number']], properties: [['content_type', 'text/plain']] });
  await page.says('confirmed by every queue');
  await page.unfold('Get messages');
  await page.fill('Get messages', { count: '5' });
  await page.says('Message 1', 'content_type', 'text/plain');
  assert.equal(page.document.querySelector('pre').textContent, 'grüße');
  await holds('queues/%2F/made', (q) => q.messages_ready === 1, 'what was looked at stays');
  await page.fill('Get messages', { ackmode: 'ack_requeue_false' });
  await page.answer('Cancel', 'made');
  await holds('queues/%2F/made', (q) => q.messages_ready === 1, 'nothing was taken');
  await page.fill('Get messages', { ackmode: 'ack_requeue_false' });
  await page.answer('Get messages', 'remove the messages');
  await holds('queues/%2F/made', (q) => q.messages === 0, 'the message is taken');
  await publish('made', 'x');
  await page.unfold('Purge or delete');
  await page.press('Purge messages');
  await page.answer('Cancel', 'made');
  await holds('queues/%2F/made', (q) => q.messages === 1, 'nothing was purged');
  await page.press('Purge messages');
  await page.answer('Purge', 'made', 'virtual host /');
  await holds('queues/%2F/made', (q) => q.messages === 0, 'it is purged');
  await publish('made', 'x');
  await page.fill('Delete the queue', { empty: true });
  await page.answer('Delete', 'made');
  await page.says('not empty');
  assert.equal(await status('queues/%2F/made'), 200);
  await page.fill('Delete the queue', { empty: false });
  await page.answer('Delete', 'made');
  await gone('queues/%2F/made');
  await page.find('h1', 'Queues');
});

check('an exchange: declare, bind, publish, unbind, delete', async () => {
  await declare('bound');
  await page.go('#/exchanges', 'Exchanges');
  await page.unfold('Add an exchange');
  await page.fill('Add an exchange', { name: 'made', type: 'topic', auto_delete: false, arguments: [['alternate-exchange', 'amq.fanout']] });
  await holds('exchanges/%2F/made', (x) => x.type === 'topic' && x.arguments['alternate-exchange'] === 'amq.fanout', 'the exchange');
  await page.row('made');
  await page.go('#/exchanges/%2F/made', 'Exchange made');
  await page.unfold('Add a binding from this exchange');
  await page.fill('Add a binding from this exchange', { other: 'bound', routing_key: 'a.#' });
  await holds('bindings/%2F/e/made/q/bound', (all) => all.length === 1 && all[0].routing_key === 'a.#', 'the binding');
  await page.row('a.#');
  await page.unfold('Publish a message');
  await page.fill('Publish a message', { routing_key: 'a.b', payload: 'x' });
  await holds('queues/%2F/bound', (q) => q.messages === 1, 'the message');
  await page.fill('Publish a message', { routing_key: 'other' });
  await page.says('was not routed');
  await page.press('Unbind', await page.row('a.#'));
  await page.answer('Unbind', 'a.#', 'made', 'bound');
  await holds('bindings/%2F/e/made/q/bound', (all) => all.length === 0, 'it is unbound');
  await page.press('Delete exchange');
  await page.answer('Delete', 'made');
  await gone('exchanges/%2F/made');
  await page.find('h1', 'Exchanges');
  await page.go('#/exchanges/%2F/amq.default', 'Exchange (default exchange)');
  await page.says('bound to every queue');
  await api('DELETE', 'queues/%2F/bound');
});

check('policies and operator policies: make, see in effect, change, delete', async () => {
  await declare('ruled');
  await page.go('#/policies', 'Policies');
  await page.unfold('Add a policy');
  await page.fill('Add: policy', { name: 'limit', pattern: '^ruled$', 'apply-to': 'queues', priority: '3', definition: [['max-length', '50']] });
  await holds('policies/%2F/limit', (p) => p.priority === 3 && p.definition['max-length'] === 50, 'the policy');
  await page.unfold('Add an operator policy');
  await page.fill('Add: operator policy', { name: 'roof', pattern: '^ruled$', definition: [['max-length', '20']] });
  await holds('operator-policies/%2F/roof', (p) => p.definition['max-length'] === 20, 'the operator policy');
  await page.go('#/queues/%2F/ruled', 'Queue ruled');
  await page.says('limit', 'roof', 'max-length 20');
  await page.go('#/policies/%2F/limit', 'Policy limit');
  await page.unfold('Change');
  await page.fill('Change: policy', { priority: '4' });
  await holds('policies/%2F/limit', (p) => p.priority === 4 && p.pattern === '^ruled$' && p.definition['max-length'] === 50, 'the change');
  await page.press('Delete policy');
  await page.answer('Delete', 'limit', '^ruled$');
  await gone('policies/%2F/limit');
  await page.find('h1', 'Policies');
  await page.go('#/operator_policies/%2F/roof', 'Operator policy roof');
  await page.press('Delete operator policy');
  await page.answer('Delete', 'roof');
  await gone('operator-policies/%2F/roof');
  await page.find('h1', 'Policies');
  await api('DELETE', 'queues/%2F/ruled');
});

check('users: add, give rights, change tags and password, limit, delete', async () => {
  await page.go('#/admin/users', 'Users');
  await page.unfold('Add a user');
  await page.fill('Add a user', { name: 'made', password: 'one', again: 'two', tags: 'management' });
  await page.says('passwords differ');
  await page.fill('Add a user', { name: 'made', password: 'one', again: 'one', tags: 'management' });
  await holds('users/made', (u) => u.tags.join() === 'management', 'the user');
  await page.go('#/users/made', 'User made');
  await page.unfold('Set permissions in a virtual host');
  await page.fill('Set permissions', { configure: '^made', write: '.*', read: '' });
  await holds('permissions/%2F/made', (p) => p.configure === '^made' && p.read === '', 'the rights');
  await page.row('^made');
  await page.unfold('Topic permissions');
  await page.fill('Set topic permissions', { exchange: 'amq.topic', write: '^a' });
  await holds('topic-permissions/%2F/made', (all) => all.length === 1 && all[0].write === '^a', 'the topic rights');
  await page.unfold('Change tags');
  await page.fill('Change tags', { tags: 'monitoring, management' });
  await holds('users/made', (u) => u.tags.join() === 'monitoring,management', 'the tags');
  assert.equal((await api('GET', 'whoami', undefined, 'made:one')).status, 200, 'the password stayed');
  await page.unfold('Change the password');
  await page.fill('Change the password', { password: 'new', again: 'new' });
  await until(async () => (await api('GET', 'whoami', undefined, 'made:new')).status === 200, 'the new password');
  await page.unfold('Limits');
  await page.fill('Set a limit', { limit: 'max-channels', value: '9' });
  await holds('user-limits/made', (all) => all[0]?.value['max-channels'] === 9, 'the limit');
  await page.go('#/limits', 'Limits');
  await page.row('made');
  await page.go('#/users/made', 'User made');
  await page.press('Clear', await page.row('^made'));
  await page.answer('Clear', 'made');
  await gone('permissions/%2F/made');
  await page.press('Delete user');
  await page.answer('Delete', 'made');
  await gone('users/made');
  await page.find('h1', 'Users');
});

check('virtual hosts: add, change, limit, trace, protect, delete', async () => {
  await page.go('#/vhosts', 'Virtual hosts');
  await page.unfold('Add a virtual host');
  await page.fill('Add a virtual host', { name: 'made', description: 'D', tags: 'a, b', default_queue_type: 'quorum' });
  await holds('vhosts/made', (v) => v.description === 'D' && v.tags.join() === 'a,b' && v.default_queue_type === 'quorum', 'the virtual host');
  await page.says('The virtual host is added, and you have permissions in it.');
  await declare('inside', 'classic', 'made');
  await api('POST', 'exchanges/made/amq.default/publish', { routing_key: 'inside', payload: 'x', payload_encoding: 'string', properties: {} });
  await holds('vhosts/made', (v) => v.messages === 1 && v.messages_ready === 1, 'its length');
  await page.go('#/vhosts/made', 'Virtual host made');
  await page.says('Ready1');
  await page.unfold('Limits');
  await page.fill('Set a limit', { limit: 'max-queues', value: '5' });
  await holds('vhost-limits/made', (all) => all[0]?.value['max-queues'] === 5, 'the limit');
  await page.unfold('Change');
  await page.fill('Change the virtual host', { description: 'E' });
  await holds('vhosts/made', (v) => v.description === 'E' && v.tags.join() === 'a,b', 'the change');
  await page.press('Enable tracing');
  await holds('vhosts/made', (v) => v.tracing === true, 'tracing');
  await page.press('Disable tracing');
  await holds('vhosts/made', (v) => v.tracing === false, 'no tracing');
  await page.press('Protect from deletion');
  await holds('vhosts/made', (v) => v.protected_from_deletion === true, 'protection');
  await page.press('Remove protection');
  await page.press('Delete virtual host');
  await page.answer('Cancel', 'made');
  assert.equal(await status('vhosts/made'), 200);
  await page.press('Delete virtual host');
  await page.answer('Delete everything', 'made', 'queues with their messages');
  await gone('vhosts/made');
  await page.find('h1', 'Virtual hosts');
});

check('connections, channels and consumers are shown as they are, and one is closed with a reason', async () => {
  await declare('eaten');
  const connection = await amqp.connect('amqp://guest:guest@127.0.0.1:5681', { clientProperties: { connection_name: HOSTILE } });
  const closed = new Promise((resolve) => connection.once('close', resolve));
  const channel = await connection.createConfirmChannel();
  await channel.prefetch(7);
  await channel.consume('eaten', () => {}, { consumerTag: 'mouth' });
  await publish('eaten', 'x');
  await holds('channels', (all) => all.some((c) => c.messages_unacknowledged === 1), 'a channel with a message');
  const [{ name }] = await get('connections');
  await page.go('#/connections', 'Connections');
  await page.row(name);
  await page.says(HOSTILE);
  page.clean();
  await page.go(`#/connections/${enc(name)}`, `Connection ${name}`);
  await page.says('AMQP 0-9-1', HOSTILE, `${name} (1)`);
  page.clean();
  await page.go('#/channels', 'Channels');
  await page.row(`${name} (1)`);
  await page.go(`#/channels/${enc(`${name} (1)`)}`, `Channel ${name} (1)`);
  await page.says('7 per consumer', 'Unacknowledged1');
  await page.go('#/queues/%2F/eaten', 'Queue eaten');
  await until(async () => text(await page.row('mouth')).includes('up'), 'the consumer is up');
  await page.go(`#/connections/${enc(name)}`, `Connection ${name}`);
  await page.fill('Close the connection', { reason: 'tidy up' });
  await page.answer('Close', name, 'guest');
  const why = await closed;
  assert.ok(why.message.includes('tidy up'), `the client was told: ${why.message}`);
  await gone(`connections/${enc(name)}`);
  await page.find('h1', 'Connections');
  await api('DELETE', 'queues/%2F/eaten');
});

check('a quorum queue: members, one less, one more; what cannot be is told with the reason', async () => {
  await declare('held', 'quorum');
  await page.go('#/queues/%2F/held', 'Queue held');
  for (const name of ['n1', 'n2', 'n3']) await page.row(name);
  await holds('queues/%2F/held', (q) => q.members.length === 3 && q.online.length === 3, 'three members');
  const { leader } = await get('queues/%2F/held');
  const other = ['n1', 'n2', 'n3'].find((name) => name !== leader);
  await insist(async () => {
    await page.press('Remove', await page.row(other));
    await page.answer('Remove', other, 'held');
  }, `The member of held on ${other} is removed.`);
  await holds('queues/%2F/held', (q) => !q.members.includes(other), 'one member less');
  await page.unfold('Add or replace a member');
  await page.fill('Add a member', { node: other });
  await holds('queues/%2F/held', (q) => q.members.includes(other), 'it is back');
  await api('DELETE', 'queues/%2F/held');
});

check('nodes: figures, maintenance, log levels, leaders, replicas', async () => {
  await declare('spread', 'quorum');
  const whole = (q) => q.members.length === 3 && q.online.length === 3;
  await holds('queues/%2F/spread', whole, 'three members that answer');
  await page.go('#/nodes', 'Nodes');
  await page.row('n2');
  await page.press('Rebalance queue leaders');
  await page.answer('Rebalance');
  await page.says('leaders are being moved.');
  await page.go('#/nodes/n2', 'Node n2');
  // The figures of a node are the same at every node; some operations are not possible there.
  await page.says('Node n1 serves this page', 'Memory', 'File descriptors', 'Processors', 'Uptime');
  await page.unfold('Replicas of quorum queues on this node');
  await insist(async () => {
    await page.fill('Replicas of quorum queues', { what: 'shrink', queue_pattern: '^spread$' });
    await page.answer('Change members', 'n2', '^spread$');
  }, '1 queues changed.');
  await holds('queues/%2F/spread', (q) => !q.members.includes('n2'), 'no replica on n2');
  await page.fill('Replicas of quorum queues', { what: 'grow', queue_pattern: '^spread$', strategy: 'all' });
  await page.answer('Change members', 'n2');
  await holds('queues/%2F/spread', (q) => q.members.includes('n2'), 'a replica on n2');
  await page.go('#/nodes/n1', 'Node n1');
  await page.says('Memory', 'File descriptors', 'Processors');
  await page.unfold('Log levels');
  await page.fill('Log level', { category: 'queue', level: 'debug' });
  await holds('nodes/n1/log-levels', (levels) => levels.queue === 'debug', 'the level');
  await page.press('Begin maintenance');
  await page.answer('Drain', 'n1');
  await holds('nodes/n1', (node) => node.being_drained === true, 'maintenance');
  await page.press('End maintenance');
  await holds('nodes/n1', (node) => node.being_drained === false, 'no maintenance');
  await api('DELETE', 'queues/%2F/spread');
});

check('definitions go out and come in; the cluster gets a name; feature flags are shown', async () => {
  await declare('kept');
  await page.go('#/definitions', 'Definitions');
  let saved = null;
  const makes = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    saved = blob;
    return 'blob:x';
  };
  // A browser would save the file, but this DOM implementation would navigate to it.
  const { prototype } = page.window.HTMLAnchorElement;
  let name = null;
  prototype.click = function click() {
    name = this.download;
  };
  await page.fill('Export definitions', { vhost: '' });
  await until(() => saved && name, 'a file');
  URL.createObjectURL = makes;
  delete prototype.click;
  assert.match(name, /^[a-z0-9-]+\.json$/);
  const exported = await saved.text();
  assert.ok(JSON.parse(exported).queues.some((q) => q.name === 'kept'));
  await api('DELETE', 'queues/%2F/kept');
  const choose = async (content) => {
    const input = await page.find('input[type=file]');
    Object.defineProperty(input, 'files', { configurable: true, value: [{ name: 'd.json', text: async () => content }] });
    input.dispatchEvent(new page.window.Event('change', { bubbles: true }));
    await page.fill('Import definitions', {});
    await page.answer('Import', 'd.json');
  };
  await choose('{"queues": [{}]}');
  await page.find('form .problem');
  await choose(exported);
  await holds('queues/%2F/kept', () => true, 'the queue is back');
  await page.says('The definitions are imported.');
  await page.go('#/cluster-name', 'Cluster name');
  await page.fill('Cluster name', { name: 'house' });
  await holds('cluster-name', (cluster) => cluster.name === 'house', 'the name');
  await page.go('#/feature-flags', 'Feature flags');
  for (const flag of await get('feature-flags')) assert.ok(text(await page.row(flag.name)).includes(flag.state));
  await api('DELETE', 'queues/%2F/kept');
});

check('each sees what its tags open, and a changed password ends it', async () => {
  for (const [name, tags] of [
    ['watcher', 'monitoring'],
    ['member', 'management'],
    ['nobody', ''],
  ]) {
    await api('PUT', `users/${name}`, { password: 'secret', tags });
    await api('PUT', `permissions/%2F/${name}`, { configure: '', write: '', read: '' });
  }
  const menu = () => [...page.document.querySelectorAll('header nav a')].map(text);
  const as = async (name) => {
    await page.press('Sign out');
    await page.find('form', 'Sign in');
    assert.equal(page.window.sessionStorage.length, 0, 'nothing is kept of who was here');
    await page.signIn(name, 'secret');
    await until(() => page.document.querySelector('.user')?.textContent === name, `${name} is in`);
  };
  await as('watcher');
  assert.ok(menu().includes('Nodes') && menu().includes('Policies') && !menu().includes('Users') && !menu().includes('Definitions'));
  await page.go('#/users', 'Access denied');
  await page.go('#/vhosts', 'Virtual hosts');
  assert.ok(!page.text().includes('Add a virtual host'));
  await as('member');
  assert.ok(!menu().includes('Nodes') && menu().includes('Queues'));
  await page.go('#/', 'Overview');
  await page.says('You see the objects of your virtual hosts');
  await page.go('#/queues', 'Queues');
  await page.unfold('Add a queue');
  await page.fill('Add a queue', { name: 'forbidden', type: 'classic' });
  await page.says("access to queue 'forbidden' in vhost '/' refused for user 'member'");
  await as('nobody');
  await page.find('h1', 'Access denied');
  await as('watcher');
  await page.go('#/queues', 'Queues');
  await api('PUT', 'users/watcher', { password: 'other', tags: 'monitoring' });
  await page.says('no longer valid', 'Sign in');
});

run('web-ui');
