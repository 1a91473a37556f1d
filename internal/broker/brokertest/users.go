// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokertest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"golang.org/x/crypto/argon2"

	"posthorn.io/posthorn/internal/broker"
)

// hash returns an argon2id hash like the broker's, with low cost parameters.
func hash(password string) string {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	digest := argon2.IDKey([]byte(password), salt, 1, 64, 1, 32)
	encode := base64.RawStdEncoding.EncodeToString
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "$argon2id$v=19$m=64,t=1,p=1$%s$%s", encode(salt), encode(digest)))
}

func newUser(name, password string, tags []string) broker.User {
	return broker.User{
		Name: name, PasswordHash: hash(password),
		HashingAlgorithm: "argon2id", Tags: tags,
	}
}

func (s *Server) serveUsers(r *request) reply {
	if len(r.parts) < 2 {
		return notFound()
	}
	name := r.parts[1]
	user, exists := s.users[name]
	if len(r.parts) == 2 && r.Method == http.MethodPut {
		return s.putUser(r, name, exists)
	}
	if !exists {
		return notFound()
	}
	if len(r.parts) == 3 {
		return s.userPermissions(r.parts[2], name)
	}
	if r.Method == http.MethodDelete {
		delete(s.users, name)
		maps.DeleteFunc(s.permissions, func(at key, _ broker.Permission) bool { return at.name == name })
		maps.DeleteFunc(s.topics, func(at topicKey, _ broker.TopicPermission) bool { return at.user == name })
		return noContent
	}
	return ok(user)
}

func (s *Server) putUser(r *request, name string, exists bool) reply {
	var in struct {
		Password *string `json:"password"`
		Hash     *string `json:"password_hash"`
		Tags     string  `json:"tags"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || (in.Password == nil) == (in.Hash == nil) {
		return badRequest("password or password_hash and tags are required")
	}
	tags := []string{}
	for _, tag := range strings.Split(in.Tags, ",") {
		if tag != "" {
			tags = append(tags, tag)
		}
	}
	if in.Hash != nil {
		s.users[name] = broker.User{Name: name, PasswordHash: *in.Hash, Tags: tags}
	} else {
		s.users[name] = newUser(name, *in.Password, tags)
	}
	if exists {
		return noContent
	}
	return created
}

func (s *Server) userPermissions(what, name string) reply {
	switch what {
	case "permissions":
		out := []broker.Permission{}
		for at, p := range s.permissions {
			if at.name == name {
				out = append(out, p)
			}
		}
		return ok(out)
	case "topic-permissions":
		out := []broker.TopicPermission{}
		for at, p := range s.topics {
			if at.user == name {
				out = append(out, p)
			}
		}
		return ok(out)
	}
	return notFound()
}

func (s *Server) servePermissions(r *request) reply {
	if len(r.parts) != 3 {
		return notFound()
	}
	at := key{r.parts[1], r.parts[2]}
	if _, known := s.users[at.name]; r.Method == http.MethodPut && (!known || s.vhosts[at.vhost] == nil) {
		return badRequest("vhost_or_user_not_found")
	}
	existing, exists := s.permissions[at]
	if r.Method == http.MethodGet {
		if !exists {
			return notFound()
		}
		return ok(existing)
	}
	if r.Method == http.MethodDelete {
		if !exists {
			return notFound()
		}
		delete(s.permissions, at)
		return noContent
	}
	var in broker.Permission
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	in.User, in.Vhost = at.name, at.vhost
	s.permissions[at] = in
	if exists {
		return noContent
	}
	return created
}

func (s *Server) serveTopics(r *request) reply {
	if len(r.parts) != 3 && (len(r.parts) != 4 || r.Method != http.MethodDelete) {
		return notFound()
	}
	vhost, user := r.parts[1], r.parts[2]
	if _, known := s.users[user]; r.Method == http.MethodPut && (!known || s.vhosts[vhost] == nil) {
		return badRequest("vhost_or_user_not_found")
	}
	existed := false
	for at := range s.topics {
		existed = existed || at.vhost == vhost && at.user == user
	}
	if r.Method == http.MethodDelete {
		if !existed {
			return notFound()
		}
		for at := range s.topics {
			if at.vhost == vhost && at.user == user && (len(r.parts) == 3 || at.exchange == r.parts[3]) {
				delete(s.topics, at)
			}
		}
		return noContent
	}
	var in broker.TopicPermission
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	in.User, in.Vhost = user, vhost
	s.topics[topicKey{vhost, user, in.Exchange}] = in
	if existed {
		return noContent
	}
	return created
}

func (s *Server) serveLimits(r *request) reply {
	if len(r.parts) < 2 {
		return notFound()
	}
	user := r.parts[1]
	if _, known := s.users[user]; !known {
		return notFound()
	}
	if len(r.parts) == 2 {
		if len(s.limits[user]) == 0 {
			return ok([]any{})
		}
		return ok([]map[string]any{{"user": user, "value": s.limits[user]}})
	}
	if r.Method == http.MethodDelete {
		delete(s.limits[user], r.parts[2])
		return noContent
	}
	var in struct {
		Value int64 `json:"value"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return badRequest("json")
	}
	if s.limits[user] == nil {
		s.limits[user] = map[string]int64{}
	}
	s.limits[user][r.parts[2]] = in.Value
	return noContent
}

// serveConnections accepts requests to close a user's connections; the server has none.
func (s *Server) serveConnections(r *request) reply {
	if len(r.parts) != 3 || r.parts[1] != "username" || r.Method != http.MethodDelete {
		return notFound()
	}
	if s.refuseClosing {
		return reply{http.StatusServiceUnavailable, nil}
	}
	return noContent
}

// RefuseClosing makes requests to close connections fail with 503, or ends that.
func (s *Server) RefuseClosing(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseClosing = refuse
}
