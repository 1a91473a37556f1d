// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

const (
	// liveConfigKey is the key of LiveConfigMap. Its file follows that of spec.config, over which it takes precedence.
	liveConfigKey = "95-live.conf"
	// reloadPoll is the interval of reloads until the kubelet has updated the files of a pod.
	reloadPoll = 2 * time.Second
	// maxPendingKeys bounds each list of keys in the status.
	maxPendingKeys = 32
)

// settingKeys are the keys of the configuration that a broker knows.
type settingKeys []broker.SettingKey

// find returns the key that a setting has. It returns false when the broker does not know it.
func (k settingKeys) find(setting string) (broker.SettingKey, bool) {
	for _, key := range k {
		prefix, isPattern := strings.CutSuffix(key.Key, "*")
		if key.Key == setting || isPattern && strings.HasPrefix(setting, prefix) && len(setting) > len(prefix) {
			return key, true
		}
	}
	return broker.SettingKey{}, false
}

// revisionFacts is the input of decideRevision.
type revisionFacts struct {
	// Runs: pods may run, with the pod template of the StatefulSet.
	Runs bool
	// SameSettings: the pod template has the wanted settings. OnlySettings: nothing else of it is to change.
	SameSettings, OnlySettings bool
	// Mounted: the pod template and every pod mount the live settings and have one image.
	Mounted bool
	// Accepted: the live settings have the wanted settings already.
	Accepted bool
	// Changed are the keys whose values differ between the settings of the pod template and the wanted ones, and Removed
	// those of them that the wanted ones lack.
	Changed, Removed []string
	// Keys that the nodes know; empty when no node answers or the broker has no reload.
	Keys settingKeys
}

// revisionDecision is how new settings reach the nodes.
type revisionDecision string

const (
	revisionRestart revisionDecision = "Restart" // a new pod template has them
	revisionReload  revisionDecision = "Reload"  // running nodes load them, once a pod has checked them
	revisionLoaded  revisionDecision = "Loaded"  // the live settings have them
)

// decideRevision decides how settings reach the nodes. The first row that applies decides:
//
//	nothing runs, or the pod template has the settings | Restart
//	something else of the pod template changes         | Restart
//	a pod does not mount the live settings             | Restart
//	the live settings have them                        | Loaded
//	a reload does not apply one of the changed keys    | Restart
//	a removed key has no default                       | Restart
//	otherwise                                          | Reload
func decideRevision(f revisionFacts) revisionDecision {
	switch {
	case !f.Runs, f.SameSettings, !f.OnlySettings, !f.Mounted:
		return revisionRestart
	case f.Accepted:
		return revisionLoaded
	}
	for _, changed := range f.Changed {
		key, isKnown := f.Keys.find(changed)
		if !isKnown || !key.Live || (slices.Contains(f.Removed, changed) && key.Default == "") {
			return revisionRestart
		}
	}
	return revisionReload
}

// readLiveSettings reads the ConfigMap of the live settings.
func (r *reconciliation) readLiveSettings(ctx context.Context) error {
	files := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, r.in.keyOf(names.LiveConfigMap(r.in.cluster.Name)), files)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the ConfigMap of the live settings: %w", err)
	}
	if err := mayChange(files, r.in.cluster); err != nil {
		return err
	}
	r.seen.live = files
	return nil
}

// inputsInEffect returns the inputs of the pod template, with the settings of the present template if running nodes load the
// difference.
func (out *decided) inputsInEffect(in *inputs, seen *observed) templateInputs {
	wanted := out.templateInputs(in)
	if seen.sts != nil && seen.isLoaded(wanted.Config) {
		wanted.Config = seen.templateSettings()
	}
	return wanted
}

// templateSettings returns the digest of the settings that the pod template mounts.
func (seen *observed) templateSettings() string {
	return seen.sts.Spec.Template.Annotations[names.AnnotationConfig]
}

// isLoaded reports whether the live settings complete those of the pod template to the settings of a digest.
func (seen *observed) isLoaded(digest string) bool {
	return seen.live != nil && seen.live.Annotations[names.AnnotationLive] == digest &&
		seen.live.Annotations[names.AnnotationLiveBase] == seen.templateSettings()
}

// chooseRevision decides how the wanted settings reach the nodes.
func (r *reconciliation) chooseRevision(ctx context.Context, wanted templateInputs) (revisionDecision, error) {
	sts := r.seen.sts
	if sts == nil || isHibernated(sts) {
		return revisionRestart, nil
	}
	kept := wanted
	kept.Config = r.seen.templateSettings()
	stored, err := kept.digest()
	if err != nil {
		return revisionRestart, err
	}
	facts := revisionFacts{
		Runs: true, SameSettings: kept.Config == wanted.Config, OnlySettings: sts.Annotations[names.AnnotationInputs] == stored,
		Mounted: r.seen.allMountLiveSettings(r.in.cluster.Name), Accepted: r.seen.isLoaded(wanted.Config),
	}
	if facts.SameSettings || !facts.OnlySettings || !facts.Mounted || facts.Accepted {
		return decideRevision(facts), nil
	}
	base, err := r.revisionSettings(ctx, kept.Config)
	if err != nil || base == nil {
		return revisionRestart, err
	}
	target := settingsOf(r.in.cluster.Spec.Config)
	facts.Changed = changedKeys(base, target)
	for _, key := range facts.Changed {
		if _, remains := target[key]; !remains {
			facts.Removed = append(facts.Removed, key)
		}
	}
	facts.Keys = r.settingKeys(ctx)
	return decideRevision(facts), nil
}

// allMountLiveSettings reports whether the pod template and every pod mount the live settings and have one image.
func (seen *observed) allMountLiveSettings(cluster string) bool {
	image := func(spec *corev1.PodSpec) string {
		for i := range spec.Containers {
			if spec.Containers[i].Name == containerName {
				return spec.Containers[i].Image
			}
		}
		return ""
	}
	template, file := &seen.sts.Spec.Template.Spec, names.LiveConfigMap(cluster)
	if !mountsConfigMap(template, file) {
		return false
	}
	for _, pod := range seen.pods {
		if !mountsConfigMap(&pod.Spec, file) || image(&pod.Spec) != image(template) {
			return false
		}
	}
	return true
}

// settingKeys asks one running node which keys it knows; empty when none answers.
func (r *reconciliation) settingKeys(ctx context.Context) settingKeys {
	if r.seen.keysAsked {
		return r.seen.keys
	}
	r.seen.keysAsked = true
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	nodes, err := r.Brokers.Nodes(ctx, r.in.key())
	if err != nil {
		return nil
	}
	for _, name := range sortedKeys(r.seen.pods) {
		pod := r.seen.pods[name]
		if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
			continue
		}
		node, err := nodes(name, listenerOf(pod.Spec.Containers))
		if err != nil {
			continue
		}
		if r.seen.keys, err = node.SettingKeys(ctx, name); err == nil {
			return r.seen.keys
		}
		log.FromContext(ctx).V(1).Info("the keys of the node's configuration are unknown", "node", name, "reason", err.Error())
	}
	return nil
}

// settingsOf returns the settings of the spec as texts.
func settingsOf(config map[string]posthornv1.ConfigValue) map[string]string {
	out := make(map[string]string, len(config))
	for key, value := range config {
		out[key] = strings.TrimSpace(string(value))
	}
	return out
}

// parseSettings reads a file that the operator has written.
func parseSettings(file string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(file) {
		if key, value, found := strings.Cut(line, " = "); found {
			out[key] = strings.TrimSpace(value)
		}
	}
	return out
}

// formatSettings writes settings as a configuration file, in key order.
func formatSettings(settings map[string]string) string {
	var b strings.Builder
	for _, key := range sortedKeys(settings) {
		fmt.Fprintf(&b, "%s = %s\n", key, settings[key])
	}
	return b.String()
}

// revisionSettings returns the settings of a revision; nil when its ConfigMap does not exist.
func (r *reconciliation) revisionSettings(ctx context.Context, digest string) (map[string]string, error) {
	if known, found := r.seen.revisions[digest]; found {
		return known, nil
	}
	var files corev1.ConfigMap
	err := r.Client.Get(ctx, r.in.keyOf(names.SettingsConfigMap(r.in.cluster.Name, digest)), &files)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the settings of a revision: %w", err)
	}
	var settings map[string]string
	if err == nil {
		settings = parseSettings(files.Data[userConfigKey])
	}
	if r.seen.revisions == nil {
		r.seen.revisions = map[string]map[string]string{}
	}
	r.seen.revisions[digest] = settings
	return settings, nil
}

// changedKeys returns the keys whose values differ, in order.
func changedKeys(before, after map[string]string) []string {
	var out []string
	for _, key := range sortedKeys(before) {
		if value, remains := after[key]; !remains || value != before[key] {
			out = append(out, key)
		}
	}
	for key := range after {
		if _, was := before[key]; !was {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// ensureLiveSettings keeps the ConfigMap with the settings that running nodes load: the difference between the settings of
// the pod template and the wanted ones, and the external addresses of the nodes.
func (r *reconciliation) ensureLiveSettings(ctx context.Context) error {
	name := names.LiveConfigMap(r.in.cluster.Name)
	if r.seen.sts == nil || !mountsConfigMap(&r.seen.sts.Spec.Template.Spec, name) {
		return nil
	}
	content, annotations, err := r.liveSettings(ctx)
	if err != nil || (r.seen.live == nil && len(content) == 0) {
		return err
	}
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	done, err := r.apply(ctx, files, func() error {
		files.Data, files.BinaryData = map[string]string{liveConfigKey: formatSettings(content)}, nil
		for key, value := range annotations {
			metav1.SetMetaDataAnnotation(&files.ObjectMeta, key, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if done != controllerutil.OperationResultNone {
		log.FromContext(ctx).Info("changed the live settings", "keys", sortedKeys(content))
	}
	r.seen.live = files
	return nil
}

// liveSettings returns the content of the ConfigMap and its annotations.
func (r *reconciliation) liveSettings(ctx context.Context) (content, annotations map[string]string, err error) {
	before := map[string]string{}
	if r.seen.live != nil {
		before = parseSettings(r.seen.live.Data[liveConfigKey])
	}
	wanted, template := configDigest(r.in.cluster.Spec.Config), r.seen.templateSettings()
	isLoaded := r.out.revision == revisionReload && r.out.held == nil && r.out.invalidConfig == "" || r.seen.isLoaded(wanted)
	content = map[string]string{}
	switch {
	case wanted == template || isLoaded:
		if err := r.addDifferences(ctx, content, before); err != nil {
			return nil, nil, err
		}
		annotations = map[string]string{names.AnnotationLive: wanted, names.AnnotationLiveBase: template}
	default:
		// The wanted settings are not accepted yet.
		for key, value := range before {
			if !strings.HasPrefix(key, advertisedPrefix) {
				content[key] = value
			}
		}
	}
	r.addAddresses(ctx, content, before)
	return content, annotations, nil
}

// addDifferences adds the settings by which the wanted ones differ from those of the pod template. A pod of an older
// revision keeps the live settings that it has until it is replaced.
func (r *reconciliation) addDifferences(ctx context.Context, content, before map[string]string) error {
	target, template := settingsOf(r.in.cluster.Spec.Config), r.seen.templateSettings()
	revisions := []string{template}
	for _, name := range sortedKeys(r.seen.pods) {
		if digest := r.seen.pods[name].Annotations[names.AnnotationConfig]; digest != "" && !slices.Contains(revisions, digest) {
			revisions = append(revisions, digest)
		}
	}
	for _, revision := range revisions {
		base, err := r.revisionSettings(ctx, revision)
		if err != nil {
			return err
		}
		for _, key := range changedKeys(base, target) {
			known, wasLive := before[key]
			if base == nil || (revision != template && !wasLive) {
				continue
			}
			if value, remains := target[key]; remains {
				content[key] = value
			} else if found, isKnown := r.settingKeys(ctx).find(key); isKnown && found.Default != "" {
				content[key] = found.Default
			} else if wasLive {
				content[key] = known
			}
		}
	}
	return nil
}

// addAddresses adds the external addresses of the nodes, if the nodes know the setting: others would refuse to start.
func (r *reconciliation) addAddresses(ctx context.Context, content, before map[string]string) {
	addresses := advertisedSettings(r.in.cluster.Spec.ExternalListeners, r.seen.external)
	if len(addresses) == 0 {
		return
	}
	isKnown := false
	for key := range before {
		isKnown = isKnown || strings.HasPrefix(key, advertisedPrefix)
	}
	if !isKnown {
		key, found := r.settingKeys(ctx).find(advertisedPrefix + "node")
		isKnown = found && key.Live
	}
	if !isKnown {
		r.seen.notAdvertised = true
		r.out.requeueWithin(checkRetry)
		return
	}
	for key, value := range addresses {
		content[key] = value
	}
}

// reloadNodes makes the running nodes load the live settings. The kubelet updates the files of a pod when the pod changes, so
// that nodes need not wait for its period.
func (r *reconciliation) reloadNodes(ctx context.Context) error {
	if err := r.notePendingRestart(ctx); err != nil || r.seen.live == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	nodes, err := r.Brokers.Nodes(ctx, r.in.key())
	if err != nil {
		log.FromContext(ctx).V(1).Info("cannot query the nodes", "reason", err.Error())
		return nil
	}
	live := parseSettings(r.seen.live.Data[liveConfigKey])
	for i := range r.seen.members {
		m := &r.seen.members[i]
		if m.Presence != podPresent || m.Health == healthUnknown || !mountsConfigMap(&m.pod.Spec, r.seen.live.Name) {
			continue
		}
		node, err := nodes(m.Name, m.listener)
		if err != nil {
			continue
		}
		settings, err := node.Settings(ctx, m.Name)
		if err != nil {
			continue
		}
		base, err := r.revisionSettings(ctx, m.pod.Annotations[names.AnnotationConfig])
		if err != nil {
			return err
		}
		pending := pendingSettings(settings, live, base)
		if len(pending) == 0 {
			continue
		}
		if err := r.touchPod(ctx, m.pod); err != nil {
			return err
		}
		r.out.pendingReload = append(r.out.pendingReload, pending...)
		r.out.requeueWithin(reloadPoll)
		if _, err := node.ReloadSettings(ctx, m.Name); err != nil {
			r.out.reloadFailure = topology.OneLine(fmt.Sprintf("%s: %v", m.Name, err))
		}
	}
	r.out.pendingReload = boundedKeys(r.out.pendingReload)
	return nil
}

// notePendingRestart lists the settings that nodes get when the roll restarts them.
func (r *reconciliation) notePendingRestart(ctx context.Context) error {
	if r.seen.sts == nil {
		return nil
	}
	target := settingsOf(r.in.cluster.Spec.Config)
	var pending []string
	for i := range r.seen.members {
		pod := r.seen.members[i].pod
		if pod == nil || pod.Annotations[names.AnnotationConfig] == r.seen.templateSettings() {
			continue
		}
		base, err := r.revisionSettings(ctx, pod.Annotations[names.AnnotationConfig])
		if err != nil {
			return err
		}
		if base == nil {
			continue
		}
		for _, key := range changedKeys(base, target) {
			if found, isKnown := r.settingKeys(ctx).find(key); !isKnown || !found.Live {
				pending = append(pending, key)
			}
		}
	}
	r.out.pendingRestart = boundedKeys(pending)
	return nil
}

// boundedKeys returns the keys in order, each once, and at most as many as the status has room for.
func boundedKeys(keys []string) []string {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	return keys[:min(len(keys), maxPendingKeys)]
}

// pendingSettings returns the keys of a node's live settings whose values differ from its files: live has the precedence
// over base. Values of the environment and of options, which no file changes, do not count.
func pendingSettings(settings []broker.Setting, live, base map[string]string) []string {
	var pending []string
	has := map[string]bool{}
	for _, setting := range settings {
		has[setting.Key] = true
		wanted, isWanted := live[setting.Key]
		if !isWanted {
			wanted, isWanted = base[setting.Key]
		}
		isFixed := strings.HasPrefix(setting.Source, "environment ") || strings.HasPrefix(setting.Source, "--")
		isLeft := !isWanted && strings.Contains(setting.Source, liveConfigKey)
		if setting.Live && !isFixed && (isLeft || isWanted && setting.Value != wanted) {
			pending = append(pending, setting.Key)
		}
	}
	for key := range live {
		if !has[key] {
			pending = append(pending, key)
		}
	}
	return pending
}

// touchPod records the content of the live settings on a pod.
func (r *reconciliation) touchPod(ctx context.Context, pod *corev1.Pod) error {
	content := digest([]byte(r.seen.live.Data[liveConfigKey]))
	if pod.Annotations[names.AnnotationLive] == content {
		return nil
	}
	before := client.MergeFrom(pod.DeepCopy())
	changed := pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.AnnotationLive, content)
	if err := r.Client.Patch(ctx, changed, before); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("recording the live settings on pod %s: %w", pod.Name, err)
	}
	return nil
}

// configurationStatus returns the settings that not all nodes have; nil when all have all.
func (out *decided) configurationStatus() *posthornv1.ConfigurationStatus {
	if len(out.pendingRestart) == 0 && len(out.pendingReload) == 0 {
		return nil
	}
	return &posthornv1.ConfigurationStatus{
		PendingRestart: out.pendingRestart, PendingReload: out.pendingReload, Message: out.reloadFailure,
	}
}
