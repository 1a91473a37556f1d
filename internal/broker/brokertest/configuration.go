// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"posthorn.io/posthorn/internal/broker"
)

// Files returns the settings in the files of a node, by key.
type Files func(node string) map[string]broker.Setting

// configuration of the nodes.
type configuration struct {
	keys  []broker.SettingKey
	files Files
	// running has the settings of each node as they apply.
	running map[string]map[string]broker.Setting
}

// SetConfiguration makes the nodes know these keys and read their settings from files, at once and whenever one starts. Without
// it the server answers like a broker without a reload.
func (s *Server) SetConfiguration(keys []broker.SettingKey, files Files) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configuration = &configuration{keys: keys, files: files, running: map[string]map[string]broker.Setting{}}
	for name := range s.nodes {
		s.configuration.start(name)
	}
}

// RunningSetting returns the value of a node's setting as it applies; empty when it has none.
func (s *Server) RunningSetting(node, key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.configuration.running[node][key].Value
}

func (c *configuration) start(node string) {
	if c != nil {
		c.running[node] = c.files(node)
	}
}

func (c *configuration) isLive(key string) bool {
	return slices.ContainsFunc(c.keys, func(k broker.SettingKey) bool {
		prefix, isPattern := strings.CutSuffix(k.Key, "*")
		return k.Live && (k.Key == key || isPattern && strings.HasPrefix(key, prefix))
	})
}

// serveConfiguration handles /api/nodes/{node}/configuration and what is below it.
func (s *Server) serveConfiguration(r *request) reply {
	c, node := s.configuration, r.parts[1]
	switch {
	case c == nil || s.nodes[node] == nil:
		return notFound()
	case r.node != node:
		return badRequest("this is node '" + r.node + "'; ask node '" + node + "' itself")
	case len(r.parts) == 3:
		out := []broker.Setting{}
		for _, key := range slices.Sorted(maps.Keys(c.running[node])) {
			setting := c.running[node][key]
			setting.Key, setting.Live = key, c.isLive(key)
			out = append(out, setting)
		}
		return ok(out)
	case r.parts[3] == "keys":
		return ok(c.keys)
	case r.parts[3] == "reload" && r.Method == http.MethodPost:
		return ok(c.reload(node))
	}
	return notFound()
}

// reload applies the live settings of the files.
func (c *configuration) reload(node string) broker.Reload {
	var out broker.Reload
	files, running := c.files(node), c.running[node]
	for key, setting := range files {
		switch {
		case running[key].Value == setting.Value:
		case c.isLive(key):
			out.Changed = append(out.Changed, key)
		default:
			out.Restart = append(out.Restart, key)
			continue
		}
		if c.isLive(key) {
			running[key] = setting
		}
	}
	for key := range running {
		if _, remains := files[key]; !remains && c.isLive(key) {
			out.Changed = append(out.Changed, key)
			delete(running, key)
		}
	}
	return out
}
