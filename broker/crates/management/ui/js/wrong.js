// Problems of a cluster, and their remedies.

/** Usage of file descriptors or connections above which it is reported. */
const HIGH_USAGE = 0.9;

/**
 * Derived from API data: `nodes`, `flags`, `critical` (queues that would lose their quorum without this node) and `expiring` (listeners whose
 * certificates expire soon). Unknown data are null or omitted. Returns [{bad, what, then, place}]: `then` is the remedy and `place` its page.
 */
export function problems({ nodes, flags, critical, expiring, here }) {
  const found = [];
  for (const node of nodes ?? []) found.push(...problemsOf(node));
  const off = (flags ?? []).filter((flag) => flag.state === 'disabled').map((flag) => flag.name);
  if (off.length > 0) {
    found.push({
      bad: false,
      what: `Feature flags are disabled: ${off.join(', ')}.`,
      then: 'Enable them when every node runs the new version. Feature flags cannot be disabled again.',
      place: ['feature-flags'],
    });
  }
  // In a cluster of one node this is always the case.
  if (critical?.length > 0 && (nodes?.length ?? 2) > 1) {
    found.push({
      bad: false,
      what: `${critical.length} queues would lose their majority without ${here ?? 'this node'}, for example ${critical[0].readable_name ?? critical[0].name}.`,
      then: 'Do not stop this node. Start the nodes that are down, or wait until new replicas have caught up.',
      place: here ? ['nodes', here] : ['nodes'],
    });
  }
  if (expiring?.length > 0) {
    const soonest = Math.min(...expiring.map((listener) => listener.expires * 1000));
    found.push({
      bad: true,
      what: `The certificate of ${expiring.map((listener) => `${listener.protocol} (port ${listener.port})`).join(', ')} expires on ${new Date(soonest).toLocaleDateString()}.`,
      then: 'Replace the certificate file: the node reloads it without a restart.',
    });
  }
  return found;
}

function problemsOf(node) {
  const found = [];
  const place = ['nodes', node.name];
  const report = (bad, what, then) => found.push({ bad, what, then, place });
  if (!node.running) {
    report(
      true,
      `Node ${node.name} is down.`,
      'Start it. Quorum queues stay available while a majority of their members runs. If the node is lost, forget it on its page: its replicas move to other nodes.',
    );
  }
  if (node.mem_alarm) {
    report(
      true,
      `Node ${node.name} is above its memory watermark: publishers are blocked in the whole cluster.`,
      'Let consumers catch up, limit or purge long queues, or add memory (vm_memory_high_watermark sets the threshold).',
    );
  }
  if (node.disk_free_alarm) {
    report(
      true,
      `Node ${node.name} is below its free disk space limit: publishers are blocked in the whole cluster.`,
      'Purge long queues or enlarge the disk; publishers are then unblocked (disk_free_limit sets the threshold).',
    );
  }
  if (node.being_drained) {
    report(
      false,
      `Node ${node.name} is in maintenance mode: it accepts no clients and leads no queues.`,
      'End maintenance on its page when the work is done.',
    );
  }
  for (const [used, total, noun, then] of [
    ['fd_used', 'fd_total', 'file descriptors', 'Raise the limit of the process (LimitNOFILE, ulimit -n).'],
    ['sockets_used', 'sockets_total', 'client connections', 'Distribute clients over more nodes, or raise the limit.'],
  ]) {
    if (node[total] > 0 && node[used] / node[total] >= HIGH_USAGE) report(true, `Node ${node.name} uses ${node[used]} of ${node[total]} ${noun}.`, then);
  }
  return found;
}
