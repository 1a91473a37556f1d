// What is wrong with a cluster, and what to do about it.

/** Share of descriptors or connections from which on it is told. */
const NEARLY = 0.9;

/**
 * From what the API says: `nodes`, `flags`, `critical` (queues that need the node that was asked) and `expiring` (listeners whose
 * certificates end soon). What is not known is null or left out. Gives [{bad, what, then, place}]; `place` is where to do it.
 */
export function wrong({ nodes, flags, critical, expiring, here }) {
  const found = [];
  for (const node of nodes ?? []) found.push(...wrongWith(node));
  const off = (flags ?? []).filter((flag) => flag.state === 'disabled').map((flag) => flag.name);
  if (off.length > 0) {
    found.push({
      bad: false,
      what: `Feature flags are off: ${off.join(', ')}.`,
      then: 'When every node has the new version, turn them on; that cannot be taken back.',
      place: ['feature-flags'],
    });
  }
  // A cluster of one node is always such.
  if (critical?.length > 0 && (nodes?.length ?? 2) > 1) {
    found.push({
      bad: false,
      what: `${critical.length} queues would lose their majority without ${here ?? 'the node that was asked'}, for example ${critical[0].readable_name ?? critical[0].name}.`,
      then: 'Do not stop this node now. Start nodes that are down, or wait until new replicas have caught up.',
      place: here ? ['nodes', here] : ['nodes'],
    });
  }
  if (expiring?.length > 0) {
    const soonest = Math.min(...expiring.map((listener) => listener.expires * 1000));
    found.push({
      bad: true,
      what: `The certificate of ${expiring.map((listener) => `${listener.protocol} (port ${listener.port})`).join(', ')} ends on ${new Date(soonest).toLocaleDateString()}.`,
      then: 'Put a new one in its file: the node takes it without a restart.',
    });
  }
  return found;
}

function wrongWith(node) {
  const found = [];
  const place = ['nodes', node.name];
  const say = (bad, what, then) => found.push({ bad, what, then, place });
  if (!node.running) {
    say(
      true,
      `Node ${node.name} is down.`,
      'Start it. Quorum queues go on while most of their members run. If it will not come back, forget it on its page, and others take its place.',
    );
  }
  if (node.mem_alarm) {
    say(
      true,
      `Node ${node.name} is short of memory, and publishers wait in the whole cluster.`,
      'Let consumers catch up, shorten or limit long queues, or give it more memory (vm_memory_high_watermark says from where on).',
    );
  }
  if (node.disk_free_alarm) {
    say(
      true,
      `Node ${node.name} is short of disk space, and publishers wait in the whole cluster.`,
      'Empty long queues or give it a larger disk; publishers go on by themselves (disk_free_limit says from where on).',
    );
  }
  if (node.being_drained) {
    say(
      false,
      `Node ${node.name} is in maintenance: it takes no clients and leads no queues.`,
      'When the work on it is done, end its maintenance on its page.',
    );
  }
  for (const [used, total, noun, then] of [
    ['fd_used', 'fd_total', 'file descriptors', 'Give the process more (LimitNOFILE, ulimit -n).'],
    ['sockets_used', 'sockets_total', 'client connections', 'Spread clients over more nodes, or let it take more.'],
  ]) {
    if (node[total] > 0 && node[used] / node[total] >= NEARLY) say(true, `Node ${node.name} uses ${node[used]} of ${node[total]} ${noun}.`, then);
  }
  return found;
}
