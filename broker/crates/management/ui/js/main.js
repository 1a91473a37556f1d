// The application: the signed-in user, navigation, and the current page.
import { html, render, useEffect, useState } from './dom.js';
import { rights } from './client.js';
import { Form } from './form.js';
import { Question } from './parts.js';
import { find, isNewPage, parse, to } from './places.js';
import { endOfSession, leave, returned } from './provider.js';
import { client, dismiss, interval, notices, notify, question, shared } from './session.js';
import { AllConsumers, Channel, Channels, Connection, Connections } from './pages/clients.js';
import { Cluster, Definitions, FeatureFlags } from './pages/cluster.js';
import { Exchange, Exchanges } from './pages/exchanges.js';
import { Limits } from './pages/limits.js';
import { Mqtt } from './pages/mqtt.js';
import { Node, Nodes } from './pages/nodes.js';
import { Overview } from './pages/overview.js';
import { OperatorPolicy, Policies, Policy } from './pages/policies.js';
import { Queue, Queues } from './pages/queues.js';
import { Streams } from './pages/streams.js';
import { Topology } from './pages/topology.js';
import { User, Users } from './pages/users.js';
import { Vhost, Vhosts } from './pages/vhosts.js';

const anyone = () => true;
const monitors = (can) => can.monitor;
const policies = (can) => can.monitor || can.policymaker;
const administrators = (can) => can.administrator;

/** Pattern of the address; the page, its access check, and its menu entry. */
const PAGES = [
  ['', { page: Overview, allows: anyone, menu: 'Overview', place: [] }],
  ['overview', { page: Overview, allows: anyone }],
  ['connections', { page: Connections, allows: anyone, menu: 'Connections' }],
  ['connections/{}', { page: Connection, allows: anyone }],
  ['channels', { page: Channels, allows: anyone, menu: 'Channels' }],
  ['channels/{}', { page: Channel, allows: anyone }],
  ['consumers', { page: AllConsumers, allows: anyone, menu: 'Consumers' }],
  ['exchanges', { page: Exchanges, allows: anyone, menu: 'Exchanges' }],
  ['exchanges/{}/{}', { page: Exchange, allows: anyone }],
  ['queues', { page: Queues, allows: anyone, menu: 'Queues' }],
  ['queues/{}/{}', { page: Queue, allows: anyone }],
  ['stream', { page: Streams, allows: anyone, menu: 'Streams' }],
  ['stream/connections', { page: Streams, allows: anyone }],
  ['stream/super-streams', { page: Streams, allows: anyone }],
  ['mqtt', { page: Mqtt, allows: anyone, menu: 'MQTT' }],
  ['topology', { page: Topology, allows: anyone, menu: 'Topology' }],
  ['nodes', { page: Nodes, allows: monitors, menu: 'Nodes' }],
  ['nodes/{}', { page: Node, allows: monitors }],
  ['vhosts', { page: Vhosts, allows: anyone, menu: 'Virtual hosts', admin: true }],
  ['vhosts/{}', { page: Vhost, allows: anyone }],
  ['users', { page: Users, allows: administrators, menu: 'Users', admin: true }],
  ['users/{}', { page: User, allows: administrators }],
  ['policies', { page: Policies, allows: policies, menu: 'Policies', admin: true }],
  ['policies/{}/{}', { page: Policy, allows: policies }],
  ['operator_policies/{}/{}', { page: OperatorPolicy, allows: policies }],
  ['limits', { page: Limits, allows: anyone, menu: 'Limits', admin: true }],
  ['feature-flags', { page: FeatureFlags, allows: monitors, menu: 'Feature flags', admin: true }],
  ['definitions', { page: Definitions, allows: administrators, menu: 'Definitions', admin: true }],
  ['cluster-name', { page: Cluster, allows: administrators, menu: 'Cluster name', admin: true }],
  ['admin', { page: Vhosts, allows: anyone }],
];

const signedIn = shared(null);

/** The sign-in methods of the node. */
const methods = shared({ oauth_enabled: false });

/** The fragment of the address, and the number of changes of the page. A list changes the fragment without a new page. */
function useHash() {
  const [state, set] = useState({ hash: window.location.hash, visit: 0 });
  useEffect(() => {
    const onHashChange = () => {
      if (!isNewPage(window.location.hash)) return;
      set(({ visit }) => ({ hash: window.location.hash, visit: visit + 1 }));
      notices.set(notices.get().filter((notice) => notice.kind === 'good'));
      window.scrollTo(0, 0);
    };
    window.addEventListener('hashchange', onHashChange);
    // It may have changed before the listener was added.
    if (window.location.hash !== state.hash) set({ hash: window.location.hash, visit: 1 });
    return () => window.removeEventListener('hashchange', onHashChange);
  }, []);
  return state;
}

function Notices() {
  const all = notices.use();
  return html`<div class="notices" role="status" aria-live="polite">${all.map(
    (notice) => html`<p key=${notice.id} class=${notice.kind}>
    ${notice.text} <button type="button" class="action small" aria-label="Dismiss" onClick=${() => dismiss(notice.id)}>✕</button></p>`,
  )}</div>`;
}

function SignIn() {
  const submit = async ({ name, password }) => {
    const user = await client.signIn(name, password);
    notices.set([]);
    signedIn.set(user);
  };
  const { oauth_enabled: hasProvider, oauth_disable_basic_auth: noPasswords } = methods.use();
  return html`<main class="sign-in"><h1>Posthorn</h1>
    ${hasProvider && html`<${Form} label="Sign in with the identity provider" verb="Sign in with the identity provider" submit=${atProvider} fields=${[]} />`}
    ${!(hasProvider && noPasswords) && html`<${Form} label="Sign in" verb="Sign in" submit=${submit} fields=${[
      { name: 'name', label: 'User', required: true, complete: 'username' },
      { name: 'password', label: 'Password', type: 'password', required: true, complete: 'current-password' },
    ]} />`}</main>`;
}

/** Sends the browser to the provider. The node may not have known its endpoints when the page was opened. */
async function atProvider() {
  methods.set(await client.methods());
  await leave(methods.get(), browser());
}

/** Parts of the browser. */
function browser() {
  const { location, history, crypto } = window;
  let storage = null;
  try {
    storage = window.sessionStorage;
  } catch {
    // Disabled.
  }
  return { location, history, crypto, storage };
}

function signOut() {
  const idToken = client.signOut();
  signedIn.set(null);
  const end = idToken === null ? null : endOfSession(methods.get(), idToken, browser());
  if (end !== null) window.location.assign(end);
}

const Entries = ({ entries, at }) =>
  entries.map(
    ([pattern, { menu }]) => html`<li key=${pattern}>
      <a href=${pattern === '' ? '#/' : to(pattern)} aria-current=${(at?.[0] ?? '') === pattern ? 'page' : undefined}>${menu}</a></li>`,
  );

/** The menu of the pages for administration. It closes with Escape and when the focus leaves it. */
function Admin({ entries, at }) {
  const [open, set] = useState(false);
  useEffect(() => set(false), [at]);
  const isHere = entries.some(([pattern]) => pattern === at?.[0]);
  const leave = (event) => {
    if (!event.currentTarget.contains(event.relatedTarget)) set(false);
  };
  return html`<li class="admin" onFocusOut=${leave} onKeyDown=${(event) => event.key === 'Escape' && set(false)}>
    <button type="button" class=${isHere ? 'here' : ''} aria-expanded=${open} aria-controls="admin" onClick=${() => set(!open)}>Admin</button>
    <ul id="admin" class=${open ? 'open' : ''}><${Entries} entries=${entries} at=${at} /></ul></li>`;
}

function Header({ user, can, at }) {
  const every = interval.use();
  const [open, set] = useState(false);
  useEffect(() => set(false), [at]);
  const entries = PAGES.filter(([, page]) => page.menu && page.allows(can));
  return html`<header>
    <a class="name" href="#/">Posthorn</a>
    <button type="button" class="action menu" aria-expanded=${open} aria-controls="places" onClick=${() => set(!open)}>Menu</button>
    <nav id="places" class=${open ? 'open' : ''} aria-label="Pages"><ul>
      <${Entries} entries=${entries.filter(([, page]) => !page.admin)} at=${at} />
      <${Admin} entries=${entries.filter(([, page]) => page.admin)} at=${at} />
    </ul></nav>
    <div class="who">
      <label><span class="word">Refresh </span><select aria-label="Refresh" value=${every} onChange=${(event) => interval.set(Number(event.currentTarget.value))}>
        <option value="5000">every 5 s</option><option value="30000">every 30 s</option><option value="0">never</option></select></label>
      <span class="user">${user.name}</span>
      <button type="button" class="action" onClick=${signOut}>Sign out</button>
    </div>
  </header>`;
}

function Place({ user }) {
  const { hash, visit } = useHash();
  const can = rights(user);
  const at = parse(hash);
  const found = find(PAGES, at);
  useEffect(() => {
    document.title = at && at.length > 0 ? `${at.at(-1)} · Posthorn` : 'Posthorn';
  }, [hash]);
  const content = () => {
    if (!can.any)
      return html`<h1>Access denied</h1><p>User ${user.name} needs one of the tags management, policymaker, monitoring and administrator.</p>`;
    if (found === null) return html`<h1>Page not found</h1><p>This address does not exist. <a href="#/">Overview</a></p>`;
    if (!found.value.allows(can)) return html`<h1>Access denied</h1><p>The tags of user ${user.name} do not allow access to this page.</p>`;
    const Page = found.value.page;
    return html`<${Page} key=${`${visit} ${hash}`} given=${found.given} can=${can} />`;
  };
  return html`<${Header} user=${user} can=${can} at=${at} /><main><${Notices} />${content()}</main>`;
}

function App() {
  const user = signedIn.use();
  const pendingQuestion = question.use();
  useEffect(
    () =>
      client.onEnd((why) => {
        signedIn.set(null);
        notify('bad', why);
      }),
    [],
  );
  return html`${user ? html`<${Place} user=${user} />` : html`<${Notices} /><${SignIn} />`}<${Question} of=${pendingQuestion} />`;
}

async function start() {
  const root = document.getElementById('app');
  const attempt = async (action) => {
    try {
      return await action();
    } catch (error) {
      notify('bad', error.reason ?? error.message);
      return null;
    }
  };
  // First of all, so that the code does not stay in the address.
  const signIn = await attempt(() => returned(browser()));
  methods.set((await attempt(() => client.methods())) ?? methods.get());
  signedIn.set(await attempt(() => (signIn === null ? client.resume() : client.signInWith(signIn))));
  render(html`<${App} />`, root);
}

await start();
