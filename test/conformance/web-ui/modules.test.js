// Tests of the web UI's modules that need no DOM, as served by a node ($SERVED).
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const { test } = require('node:test');

const module_ = (name) => import(path.join(process.env.SERVED, 'ui/js', `${name}.js`));

test('names are encoded as path elements', async () => {
  const { path: of, withQuery } = await module_('client');
  assert.equal(of('queues', '/', 'a/b c?#é%2F<'), 'queues/%2F/a%2Fb%20c%3F%23%C3%A9%252F%3C');
  for (const name of ['.', '..', '']) assert.throws(() => of('queues', '/', name), /posthorn ctl/);
  assert.equal(
    withQuery('queues', { page: 2, name: 'a&b', sort: null, use_regex: false, sort_reverse: true, none: '' }),
    'queues?page=2&name=a%26b&sort_reverse=true',
  );
  assert.equal(withQuery('queues', {}), 'queues');
});

test('credentials follow RFC 7617 in UTF-8', async () => {
  const { basic } = await module_('client');
  assert.equal(basic('Aladdin', 'open sesame'), 'Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==');
  assert.equal(Buffer.from(basic('jürgen', '鍵:').slice(6), 'base64').toString(), 'jürgen:鍵:');
});

/** A client with fake responses, and its recorded requests. */
async function fakeClient(answers, stored = {}) {
  const { createClient } = await module_('client');
  const requests = [];
  const storage = {
    getItem: (key) => stored[key] ?? null,
    setItem: (key, value) => {
      stored[key] = value;
    },
    removeItem: (key) => delete stored[key],
  };
  const fetch = async (url, init) => {
    requests.push({ url, ...init });
    const [status, body] = answers.shift();
    return { ok: status < 300, status, text: async () => (body === undefined ? '' : typeof body === 'string' ? body : JSON.stringify(body)) };
  };
  return { client: createClient({ fetch, storage }), requests, stored };
}

test('credentials are stored only while they are valid', async () => {
  const wrong = { error: 'not_authorized', reason: 'Not_Authorized' };
  const { client, requests, stored } = await fakeClient([
    [401, wrong],
    [200, { name: 'u', tags: [] }],
    [200, []],
    [401, { reason: 'Not administrator user' }],
    [400, { reason: ['not_boolean', 'troo', 5] }],
    [401, wrong],
  ]);
  const ended = [];
  client.onEnd((why) => ended.push(why));
  await assert.rejects(client.signIn('u', 'bad'), { status: 401, reason: 'Login failed' });
  assert.deepEqual(stored, {});
  assert.equal((await client.signIn('u', 'good')).name, 'u');
  assert.deepEqual(Object.values(stored), ['Basic dTpnb29k']);
  await client.get('queues');
  assert.equal(requests.at(-1).headers.Authorization, 'Basic dTpnb29k');
  assert.equal(requests.at(-1).credentials, 'omit');
  // Missing authorization does not end the session.
  await assert.rejects(client.get('users'), { reason: 'Not administrator user' });
  await assert.rejects(client.get('queues'), { reason: 'not_boolean: troo: 5' });
  assert.deepEqual([ended.length, Object.keys(stored).length], [0, 1]);
  await assert.rejects(client.get('queues'), { status: 401 });
  assert.deepEqual([ended.length, stored], [1, {}]);
});

test('a reloaded page stays signed in unless the password changed', async () => {
  const key = 'posthorn.authorization';
  const good = await fakeClient([[200, { name: 'u' }]], { [key]: 'Basic x' });
  assert.equal((await good.client.resume()).name, 'u');
  const bad = await fakeClient([[401, { reason: 'Not_Authorized' }]], { [key]: 'Basic x' });
  assert.equal(await bad.client.resume(), null);
  assert.deepEqual(bad.stored, {});
  const none = await fakeClient([]);
  assert.equal(await none.client.resume(), null);
  const down = await fakeClient([[503, { reason: 'the node is stopping' }]], { [key]: 'Basic x' });
  await assert.rejects(down.client.resume(), { reason: 'the node is stopping' });
  assert.equal(down.stored[key], 'Basic x');
});

test('errors contain the reason of the API, and changes notify listeners', async () => {
  const { client } = await fakeClient([
    [204],
    [400, { error: 'bad_request', reason: 'no' }],
    [502, '<html>'],
    [503, { status: 'failed', reason: 'alarms' }],
  ]);
  let changes = 0;
  client.onChange(() => {
    changes += 1;
  });
  assert.equal(await client.put('queues/%2F/q', {}), null);
  await assert.rejects(client.delete('queues/%2F/q'), { status: 400, reason: 'no' });
  assert.equal(changes, 1);
  await assert.rejects(client.get('x'), { status: 502, reason: 'The node responded with status 502.' });
  await assert.rejects(client.get('x'), { status: 503, reason: 'alarms' });
});

test('a deletion is announced before its request, and its failure afterwards', async () => {
  const { isPartOf } = await module_('client');
  const { client, requests } = await fakeClient([[204], [400, { reason: 'in use' }]]);
  const told = [];
  const forget = client.onDeletion((path, state) => told.push([path, state, requests.length]));
  await client.delete('queues/%2F/q?if-empty=true');
  assert.deepEqual(told.splice(0), [['queues/%2F/q?if-empty=true', 'begun', 0]]);
  await assert.rejects(client.delete('users/u'), { reason: 'in use' });
  assert.deepEqual(told, [
    ['users/u', 'begun', 1],
    ['users/u', 'failed', 2],
  ]);
  forget();
  for (const path of ['queues/%2F/q', 'queues/%2F/q?lengths_age=60', 'queues/%2F/q/bindings']) assert.ok(isPartOf(path, 'queues/%2F/q?if-empty=true'));
  for (const path of ['queues', 'queues/%2F/q2', 'queues/%2F']) assert.ok(!isPartOf(path, 'queues/%2F/q'));
});

test('tags grant access', async () => {
  const { rights } = await module_('client');
  const of = (...tags) =>
    Object.entries(rights({ tags }))
      .filter(([, may]) => may)
      .map(([right]) => right);
  assert.deepEqual(of('administrator'), ['administrator', 'monitor', 'policymaker', 'any']);
  assert.deepEqual(of('monitoring'), ['monitor', 'any']);
  assert.deepEqual(of('policymaker'), ['policymaker', 'any']);
  assert.deepEqual(of('management'), ['any']);
  assert.deepEqual(of('other'), []);
});

test('addresses are parsed from the fragment', async () => {
  const { find, parse, to } = await module_('places');
  assert.deepEqual(parse('#/queues/%2F/a%2Fb'), ['queues', '/', 'a/b']);
  assert.deepEqual(parse(to('queues', '/', '<a/b?#>')), ['queues', '/', '<a/b?#>']);
  assert.deepEqual(parse('#/queues?sort=x'), ['queues']);
  assert.deepEqual([parse(''), parse('#/'), parse('#')], [[], [], []]);
  assert.equal(parse('#/queues/%E0%A4'), null);
  const table = [
    ['', 'first'],
    ['queues', 'all'],
    ['queues/{}/{}', 'one'],
    ['users', 'users'],
    ['admin', 'admin'],
  ];
  assert.deepEqual(find(table, ['queues', '/', 'q']), { value: 'one', given: ['/', 'q'] });
  assert.equal(find(table, []).value, 'first');
  assert.equal(find(table, ['admin', 'users']).value, 'users');
  assert.equal(find(table, ['admin']).value, 'admin');
  assert.deepEqual([find(table, ['queues', 'x']), find(table, null), find(table, ['__proto__'])], [null, null, null]);
});

test('numbers are formatted briefly, and unknown values as a dash', async () => {
  const { age, bytes, count, duration, rate, share, value } = await module_('format');
  assert.deepEqual([count(1234567), count(undefined), count(NaN)], ['1,234,567', '–', '–']);
  assert.deepEqual([rate(0), rate(0.25), rate(12345.6), rate(null)], ['0/s', '0.3/s', '12,346/s', '–']);
  assert.deepEqual([bytes(0), bytes(1023), bytes(1536), bytes(5 * 2 ** 40), bytes()], ['0 B', '1,023 B', '1.5 KiB', '5 TiB', '–']);
  assert.deepEqual(
    [duration(0), duration(59_000), duration(90_061_000), duration(3_600_000), duration(-1)],
    ['0 s', '59 s', '1 d 1 h', '1 h 0 min', '–'],
  );
  assert.deepEqual([age(0), age(61), age(90_061), age(undefined), age(null)], ['0 s', '1 min 1 s', '1 d 1 h', '', '']);
  assert.deepEqual([share(1, 2), share(3, 2), share(1, 0), share(undefined, 2)], [0.5, 1, null, null]);
  assert.deepEqual([value('<b>'), value({ a: [1] }), value(null), value(false)], ['<b>', '{"a":[1]}', '–', 'false']);
});

test('samples are converted to lines', async () => {
  const { ceiling, levels, line, rates } = await module_('samples');
  const samples = [
    { sample: 30, timestamp: 15_000 },
    { sample: 10, timestamp: 10_000 },
    { sample: 5, timestamp: 5_000 },
  ];
  assert.deepEqual(rates(samples), [
    { at: 10_000, value: 1 },
    { at: 15_000, value: 4 },
  ]);
  assert.deepEqual(
    levels(samples).map((point) => point.value),
    [5, 10, 30],
  );
  assert.deepEqual(
    rates([
      { sample: 3, timestamp: 10_000 },
      { sample: 9, timestamp: 5_000 },
    ]),
    [{ at: 10_000, value: 0 }],
  );
  assert.deepEqual([rates(undefined), levels(null)], [[], []]);
  assert.deepEqual([0, 1, 1.2, 3, 7, 10, 11, 1999].map(ceiling), [1, 1, 2, 5, 10, 10, 20, 2000]);
  assert.equal(line(levels(samples), { from: 5000, to: 15_000, top: 30, width: 100, height: 30 }), '0.0,25.0 50.0,20.0 100.0,0.0');
  assert.equal(line([{ at: 1, value: 0 }], { from: 1, to: 1, top: 1, width: 100, height: 30 }), '100.0,30.0');
});

test('a pause in sampling is a gap, without a rate across it', async () => {
  const { byteCeiling, countCeiling, gapOf, nearest, pieces, rates, timeTicks } = await module_('samples');
  // 10 per second; no samples between 10 and 60.
  const samples = [0, 5, 10, 60, 65].map((second) => ({ sample: second * 10, timestamp: second * 1000 }));
  const points = rates(samples, gapOf(5));
  assert.deepEqual(
    points.map(({ at, value }) => [at / 1000, value]),
    [
      [5, 10],
      [10, 10],
      [65, 10],
    ],
  );
  assert.deepEqual(
    pieces(points, gapOf(5)).map((piece) => piece.length),
    [2, 1],
  );
  assert.deepEqual([0, 1, 2, 3, 7, 12, 45, 1999].map(countCeiling), [2, 2, 2, 4, 10, 20, 100, 2000]);
  assert.deepEqual([0, 1000, 1025, 3 * 1024].map(byteCeiling), [1, 1000, 2048, 5120]);
  assert.deepEqual([gapOf(5), gapOf(1800)], [15_000, 4_500_000]);
  assert.equal(nearest(points, 9_000, 15_000).at, 10_000);
  assert.equal(nearest(points, 35_000, 15_000), undefined);
  assert.deepEqual(timeTicks({ from: 1_000, to: 125_000 }, 5), [30_000, 60_000, 90_000, 120_000]);
  // At full hours of a time zone two and a half hours ahead of UTC.
  assert.deepEqual(timeTicks({ from: 0, to: 10_800_000 }, 3, -150), [1_800_000, 5_400_000, 9_000_000]);
});

test('a notice of success disappears, a problem stays', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { dismiss, notices, notify } = await module_('session');
  notify('good', 'done');
  notify('bad', 'refused');
  const texts = () => notices.get().map(({ text }) => text);
  t.mock.timers.tick(9_999);
  assert.deepEqual(texts(), ['done', 'refused']);
  t.mock.timers.tick(1);
  assert.deepEqual(texts(), ['refused']);
  dismiss(notices.get()[0].id);
  assert.deepEqual(texts(), []);
});

test('payloads are indented without a change of their values, dumped and searched', async () => {
  const { bytesOf, contains, dump, indented, isShortened } = await module_('payload');
  assert.equal(indented('{"n": 12345678901234567890, "a": [], "s": "{,\\"}"}'), '{\n  "n": 12345678901234567890,\n  "a": [],\n  "s": "{,\\"}"\n}');
  assert.equal(indented('[1,{"b":true}]'), '[\n  1,\n  {\n    "b": true\n  }\n]');
  assert.deepEqual(['7', 'null', '"x"', '{', 'grüße'].map(indented), [null, null, null, null, null]);
  const message = { payload: 'AAECQQ==', payload_encoding: 'base64', payload_bytes: 9, routing_key: 'a', exchange: '', properties: { headers: { tenant: 'Blue' } } };
  assert.deepEqual([...bytesOf(message)], [0, 1, 2, 65]);
  assert.equal(isShortened(message), true);
  assert.equal(dump(bytesOf(message)).replace(/ +/g, ' '), '000000 00 01 02 41 ...A');
  assert.deepEqual(['', 'blue', 'TENANT', 'none'].map((text) => contains(message, text)), [true, true, true, false]);
});

test('the view of a list is in the address', async () => {
  const { addressOf, chosen, viewOf } = await module_('list');
  const { queryOfHash, withHashQuery } = await module_('places');
  const hash = '#/queues?name=a%26b&sort=messages&desc=1&page=3&rows=100&columns=Name,Ready&vhost=%2F';
  const view = viewOf(queryOfHash(hash));
  assert.deepEqual(view, { page: 3, size: 100, name: 'a&b', regex: false, sort: 'messages', reverse: true, vhost: '/', columns: ['Name', 'Ready'] });
  assert.deepEqual(viewOf(queryOfHash(withHashQuery('#/queues', addressOf(view)))), view);
  assert.equal(viewOf(queryOfHash('#/queues')), null);
  assert.deepEqual([viewOf(queryOfHash('#/queues?page=x&rows=7')).page, viewOf(queryOfHash('#/queues?page=x&rows=7')).size], [1, 50]);
  assert.equal(withHashQuery('#/policies?name=x', addressOf({ ...view, name: '' }, 'operator.')).includes('name=x'), true);
  const columns = [{ title: 'Name' }, { title: 'Type', wide: true }, { title: '' }];
  assert.deepEqual(chosen(columns, ['Type']), [{ title: 'Type', wide: false }, { title: '', wide: false }]);
  assert.equal(chosen(columns, ['None']), columns);
});

test('exchanges and queues of a graph stand right of their sources', async () => {
  const { layout } = await module_('pages/topology');
  const binding = (source, destination_type, destination, routing_key = '') => ({ source, destination_type, destination, routing_key });
  const { nodes, edges, columns, rows } = layout([
    binding('', 'queue', 'q', 'q'),
    binding('a', 'exchange', 'b'),
    binding('b', 'queue', 'q', 'x'),
    binding('b', 'queue', 'q', 'y'),
    binding('a', 'queue', 'r'),
  ]);
  const column = (name) => nodes.find((node) => node.name === name).column;
  assert.deepEqual(['a', 'b', 'q', 'r'].map(column), [0, 1, 2, 2]);
  assert.deepEqual([edges.length, columns, rows], [4 - 1, 3, 2]);
  assert.deepEqual(edges.find(({ to }) => to.name === 'q').labels, ['x', 'y']);
  // Exchanges that are bound in a circle.
  const circle = layout([binding('a', 'exchange', 'b'), binding('b', 'exchange', 'a'), binding('a', 'exchange', 'a')]);
  assert.equal(circle.nodes.length, 2);
});

test('input is converted to its type or rejected with a reason', async () => {
  const { headerText, objectOf, rowsOf, words } = await module_('values');
  const rows = [
    { key: 'a', value: 'x', type: 'string' },
    { key: ' n ', value: '12', type: 'number' },
    { key: 'b', value: 'true', type: 'boolean' },
    { key: 'l', value: '[1, "x"]', type: 'JSON' },
    { key: '', value: ' ', type: 'string' },
  ];
  assert.deepEqual(objectOf(rows), { a: 'x', n: 12, b: true, l: [1, 'x'] });
  assert.deepEqual(objectOf(rowsOf({ a: 'x', n: 1.5, b: false, o: { k: null } })), { a: 'x', n: 1.5, b: false, o: { k: null } });
  const bad = (key, value, type) =>
    assert.throws(
      () => objectOf([{ key, value, type }]),
      (error) => error.message.includes(value),
    );
  bad('n', 'twelve', 'number');
  bad('n', ' ', 'number');
  bad('b', 'yes', 'boolean');
  bad('j', '{', 'JSON');
  bad('', 'lost', 'string');
  assert.throws(
    () =>
      objectOf([
        { key: 'a', value: '1', type: 'string' },
        { key: 'a', value: '2', type: 'string' },
      ]),
    /twice/,
  );
  assert.equal(Object.getPrototypeOf(objectOf([{ key: '__proto__', value: '{"x": 1}', type: 'JSON' }])), Object.prototype);
  assert.deepEqual(words(' a, b  a,,'), ['a', 'b']);
  assert.equal(headerText('grüße\r\nX: y'), 'gr??e??X: y');
});

test('lists request sorted pages', async () => {
  const { queryOf, toggleSort } = await module_('list');
  const first = { page: 3, size: 50, name: '', regex: true, sort: null, reverse: false };
  assert.deepEqual(queryOf(first), { page: 3, page_size: 50, name: '', use_regex: false, sort: null, sort_reverse: false });
  const up = toggleSort(first, 'messages');
  assert.deepEqual([up.page, up.sort, up.reverse], [1, 'messages', false]);
  const down = toggleSort(up, 'messages');
  assert.deepEqual([down.sort, down.reverse], ['messages', true]);
  assert.equal(toggleSort(down, 'messages').sort, null);
});

test('problems are reported with their remedy', async () => {
  const { problems } = await module_('wrong');
  const well = { name: 'n1', running: true, mem_alarm: false, disk_free_alarm: false, being_drained: false, fd_used: 10, fd_total: 100 };
  assert.deepEqual(problems({ nodes: [well], flags: [{ name: 'f', state: 'enabled' }], critical: null, expiring: null }), []);
  const textOf = (facts) =>
    problems(facts)
      .map((one) => one.what)
      .join(' ');
  assert.match(textOf({ nodes: [{ ...well, running: false }] }), /n1 is down/);
  assert.match(textOf({ nodes: [{ ...well, mem_alarm: true }] }), /memory watermark/);
  assert.match(textOf({ nodes: [{ ...well, disk_free_alarm: true }] }), /free disk space limit/);
  assert.match(textOf({ nodes: [{ ...well, being_drained: true }] }), /maintenance/);
  assert.match(textOf({ nodes: [{ ...well, fd_used: 95 }] }), /95 of 100 file descriptors/);
  assert.match(textOf({ nodes: [well], flags: [{ name: 'f', state: 'disabled' }] }), /disabled: f/);
  assert.match(textOf({ nodes: [well, well], critical: [{ readable_name: "queue 'q'" }], here: 'n1' }), /majority without n1/);
  assert.equal(textOf({ nodes: [well], critical: [{ name: 'q' }] }), '', 'always the case in a cluster of one node');
  assert.match(textOf({ expiring: [{ protocol: 'amqp/ssl', port: 5671, expires: 1 }] }), /amqp\/ssl \(port 5671\)/);
  for (const one of problems({ nodes: [{ ...well, running: false, mem_alarm: true }] })) assert.ok(one.then.length > 20);
});

test('a request for a super stream has only the fields that were filled in', async () => {
  const { superStreamOf } = await module_('pages/streams');
  assert.deepEqual(superStreamOf({ kind: 'number', partitions: '3', keys: 'a', max_age: '', replicas: '1' }), {
    partitions: 3,
    arguments: { 'initial-cluster-size': '1' },
  });
  assert.deepEqual(superStreamOf({ kind: 'keys', partitions: '3', keys: 'emea, apac', max_age: '7D', max_length_bytes: '1000', segment_bytes: '500' }), {
    'binding-keys': 'emea, apac',
    arguments: { 'max-age': '7D', 'max-length-bytes': '1000', 'stream-max-segment-size-bytes': '500' },
  });
});

test('the retention of a stream in force is that of the policy, then that of the arguments', async () => {
  const { inForce, streamFacts } = await module_('pages/streams');
  const queue = { arguments: { 'x-max-age': '7D', 'x-max-length-bytes': 2048 }, effective_policy_definition: { 'max-age': '1h' } };
  assert.deepEqual([inForce(queue, 'max-age'), inForce(queue, 'max-length-bytes'), inForce({}, 'max-age')], ['1h', 2048, undefined]);
  const replicas = [
    { role: 'writer', first_offset: 10, committed_offset: 1099, segments: 2, chunks: 7, readers: 1 },
    { role: 'replica', state: 'down' },
  ];
  const facts = Object.fromEntries(streamFacts(queue, replicas));
  assert.deepEqual(facts, {
    'First offset': '10',
    'Last committed offset': '1,099',
    Segments: '2 with 7 chunks',
    Readers: '1',
    'Maximum age': '1h',
    'Maximum size': '2 KiB',
    'Size of segment files': 'default',
  });
  // While no replica answers, or none leads, only the settings are known.
  assert.deepEqual(Object.keys(Object.fromEntries(streamFacts({}, null))), ['Maximum age', 'Maximum size', 'Size of segment files']);
});

/** A window at this address, with storage, and the addresses that it was sent to. */
function fakeWindow(address) {
  const url = new URL(address);
  const stored = {};
  const visited = [];
  return {
    visited,
    stored,
    location: { origin: url.origin, pathname: url.pathname, search: url.search, hash: url.hash, assign: (to) => visited.push(to) },
    history: { replaceState: (_, __, to) => visited.push(to) },
    storage: {
      getItem: (key) => stored[key] ?? null,
      setItem: (key, value) => {
        stored[key] = value;
      },
      removeItem: (key) => delete stored[key],
    },
    crypto: globalThis.crypto,
  };
}

const METHODS = {
  oauth_enabled: true,
  oauth_client_id: 'web ui',
  oauth_scopes: 'openid profile',
  oauth_authorization_endpoint: 'https://id.example/authorize?tenant=1',
  oauth_end_session_endpoint: 'https://id.example/end',
};

test('browser is sent to the provider with a challenge, and its return gives the verifier', async () => {
  const { leave, returned } = await module_('provider');
  const before = fakeWindow('https://mq.example/ui/#/queues?page=2');
  await leave(METHODS, before);
  const sent = new URL(before.visited[0]);
  const parameters = Object.fromEntries(sent.searchParams);
  const { verifier, state, nonce } = JSON.parse(Object.values(before.stored)[0]);
  const challenge = require('node:crypto').createHash('sha256').update(verifier).digest('base64url');
  assert.deepEqual([sent.origin, sent.pathname], ['https://id.example', '/authorize']);
  assert.deepEqual(parameters, {
    tenant: '1',
    response_type: 'code',
    client_id: 'web ui',
    redirect_uri: 'https://mq.example/ui/',
    scope: 'openid profile',
    state,
    nonce,
    code_challenge: challenge,
    code_challenge_method: 'S256',
  });
  for (const value of [verifier, state, nonce]) assert.match(value, /^[A-Za-z0-9_-]{43}$/);
  assert.equal(new Set([verifier, state, nonce]).size, 3);

  const after = fakeWindow(`https://mq.example/ui/?code=c%2F1&state=${state}`);
  Object.assign(after.stored, before.stored);
  assert.deepEqual(returned(after), { grant: { code: 'c/1', code_verifier: verifier, redirect_uri: 'https://mq.example/ui/' }, nonce });
  assert.deepEqual([after.visited, after.stored], [['/ui/#/queues?page=2'], {}]);
  assert.equal(returned(fakeWindow('https://mq.example/ui/')), null);
});

test('return with another state, with an error or without a sign-in gives no code', async () => {
  const { leave, returned } = await module_('provider');
  const begun = fakeWindow('https://mq.example/');
  await leave(METHODS, begun);
  const { state } = JSON.parse(Object.values(begun.stored)[0]);
  for (const [query, reason] of [
    ['code=c&state=other', /not started in this tab/],
    ['code=c', /not started in this tab/],
    ['error=access_denied&error_description=Call%20me&state=other', /^This sign-in was not started in this tab. Sign in again.$/],
    [`error=access_denied&state=${state}`, /refuses the sign-in: access_denied/],
    [`error=access_denied&error_description=No%20rights&state=${state}`, /refuses the sign-in: No rights/],
  ]) {
    const after = fakeWindow(`https://mq.example/?${query}`);
    Object.assign(after.stored, begun.stored);
    assert.throws(() => returned(after), { reason });
    assert.deepEqual([after.visited, after.stored], [['/'], {}], query);
  }
  assert.throws(() => returned(fakeWindow('https://mq.example/?code=c&state=s')), { reason: /not started in this tab/ });
});

test('sign-in at the provider says what it lacks', async () => {
  const { endOfSession, leave } = await module_('provider');
  const window = fakeWindow('http://mq.example/');
  await assert.rejects(leave({ ...METHODS, oauth_authorization_endpoint: null }, window), { reason: /does not respond/ });
  const insecure = { getRandomValues: (bytes) => bytes };
  await assert.rejects(leave(METHODS, { ...window, crypto: insecure }), { reason: /HTTPS/ });
  await assert.rejects(leave(METHODS, { ...window, storage: null }), { reason: /session storage/ });
  assert.deepEqual(window.visited, []);
  assert.equal(endOfSession({ ...METHODS, oauth_end_session_endpoint: null }, 'i', window), null);
  const end = new URL(endOfSession(METHODS, 'i', window));
  assert.deepEqual(Object.fromEntries(end.searchParams), { client_id: 'web ui', post_logout_redirect_uri: 'http://mq.example/', id_token_hint: 'i' });
});

test('access token is refreshed once before it ends', async () => {
  const { createClient } = await module_('client');
  let time = 1_000_000;
  const requests = [];
  const answers = [];
  const window = fakeWindow('https://mq.example/');
  const fetch = async (url, init) => {
    requests.push([url, init.headers.Authorization, init.body]);
    const [status, body] = answers.shift();
    return { ok: status < 300, status, text: async () => JSON.stringify(body) };
  };
  const client = createClient({ fetch, storage: window.storage, now: () => time });
  const user = { name: 'alice', tags: ['management'] };
  answers.push([200, { access_token: 'a1', refresh_token: 'r1', id_token: 'i1', expires_in: 300 }], [200, user]);
  assert.deepEqual(await client.signInWith({ grant: { code: 'c' }, nonce: 'n' }), user);
  assert.deepEqual(requests, [
    ['api/oauth/token', undefined, '{"code":"c"}'],
    ['api/whoami', 'Bearer a1', undefined],
  ]);

  time += 269_000;
  answers.push([200, []]);
  await client.get('queues');
  assert.equal(requests.length, 3);
  time += 2_000;
  answers.push([200, { access_token: 'a2', refresh_token: null, expires_in: 300 }], [200, []], [200, []]);
  await Promise.all([client.get('queues'), client.get('nodes')]);
  assert.deepEqual(requests.slice(3), [
    ['api/oauth/token', undefined, '{"refresh_token":"r1"}'],
    ['api/queues', 'Bearer a2', undefined],
    ['api/nodes', 'Bearer a2', undefined],
  ]);

  // Another page in the same tab has the tokens, too.
  const reloaded = createClient({ fetch, storage: window.storage, now: () => time });
  answers.push([200, user]);
  assert.deepEqual(await reloaded.resume(), user);
  const ended = [];
  reloaded.onEnd((why) => ended.push(why));
  // While the provider is down, the token is used until it ends.
  time += 280_000;
  answers.push([503, {}], [200, []]);
  await reloaded.get('queues');
  // Later it cannot be used, but the session goes on when the provider responds again.
  time += 60_000;
  answers.push([503, { reason: 'the identity provider does not respond' }]);
  await assert.rejects(reloaded.get('queues'), { status: 503 });
  assert.deepEqual([ended, Object.keys(window.stored).length], [[], 2]);
  answers.push([200, { access_token: 'a3', expires_in: 1 }], [200, []]);
  await reloaded.get('queues');
  assert.equal(requests.at(-1)[1], 'Bearer a3');
  answers.push([400, { reason: 'the identity provider refuses the sign-in: invalid_grant' }]);
  await assert.rejects(reloaded.get('queues'), { status: 400 });
  assert.deepEqual([ended, window.stored], [['Your session at the identity provider has ended.'], {}]);
});

test('sign-out forgets the tokens', async () => {
  const { client, stored } = await fakeClient([
    [200, { access_token: 'a', id_token: 'i', expires_in: null }],
    [200, { name: 'u', tags: [] }],
    [200, { access_token: 'b' }],
    [401, { reason: 'Not_Authorized' }],
  ]);
  await client.signInWith({ grant: { code: 'c' }, nonce: 'n' });
  assert.equal(Object.keys(stored).length, 2);
  assert.equal(client.signOut(), 'i');
  assert.deepEqual(stored, {});
  await assert.rejects(client.signInWith({ grant: { code: 'c' }, nonce: 'n' }), { status: 401, reason: /refuses the token of the identity provider/ });
  assert.deepEqual(stored, {});
});

test('id token of another sign-in is refused', async () => {
  const idToken = (claims) => `e30.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.s`;
  const user = { name: 'u', tags: [] };
  const signIn = async (id_token) => {
    const { client, stored } = await fakeClient([[200, { access_token: 'a', id_token }], [200, user]]);
    const result = client.signInWith({ grant: { code: 'c' }, nonce: 'n-1' });
    return { result, stored };
  };
  assert.deepEqual(await (await signIn(idToken({ nonce: 'n-1', name: 'Zoë ÿþ' }))).result, user);
  // An encrypted token cannot be read.
  assert.deepEqual(await (await signIn('a.b.c.d.e')).result, user);
  for (const other of [idToken({ nonce: 'n-2' }), idToken({}), idToken(null), 'a.%.c', 'a..c']) {
    const { result, stored } = await signIn(other);
    await assert.rejects(result, { reason: /id token of another sign-in/ }, other);
    assert.deepEqual(stored, {}, other);
  }
});

test('sign-out during a refresh stays a sign-out', async () => {
  const { createClient } = await module_('client');
  const window = fakeWindow('https://mq.example/');
  let time = 0;
  let release;
  const answers = [
    Promise.resolve({ access_token: 'a1', refresh_token: 'r1', expires_in: 60 }),
    Promise.resolve({ name: 'u', tags: [] }),
    new Promise((resolve) => {
      release = () => resolve({ access_token: 'a2', refresh_token: 'r2', expires_in: 60 });
    }),
  ];
  const fetch = async () => {
    const body = await answers.shift();
    return { ok: true, status: 200, text: async () => JSON.stringify(body) };
  };
  const client = createClient({ fetch, storage: window.storage, now: () => time });
  const ended = [];
  client.onEnd((why) => ended.push(why));
  await client.signInWith({ grant: { code: 'c' }, nonce: 'n' });
  time = 50_000;
  const pending = client.get('queues');
  client.signOut();
  release();
  await assert.rejects(pending, { reason: 'The user has signed out.' });
  assert.deepEqual([ended, window.stored, answers], [[], {}, []]);
});
