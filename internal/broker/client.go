// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// requestTimeout bounds one call, including the reading of the answer.
	requestTimeout = 5 * time.Second
	// maxAnswer bounds the size of an answer, in bytes.
	maxAnswer = 64 << 20
	// maxExternalAnswer and maxExternalList bound the size of an answer of a broker that the operator does not run,
	// in bytes: its owner may not use up the operator's memory. The list of all queues is requested once at a time.
	maxExternalAnswer = 4 << 20
	maxExternalList   = 16 << 20
	// maxErrorAnswer bounds the size of an error's body, in bytes.
	maxErrorAnswer = 64 << 10
	// maxReason bounds the broker's message, which goes to conditions.
	maxReason = 1024
)

// Client has the requests of the operator to a broker. It escapes all names.
type Client interface {
	Overview(ctx context.Context) (Overview, error)
	Nodes(ctx context.Context) ([]Node, error)
	QuorumCritical(ctx context.Context) (Criticality, error)
	// NotReadyReason returns why the answering node does not serve clients; empty when it does.
	NotReadyReason(ctx context.Context) (string, error)
	// LostQueues lists queues whose only copy was on a disk that was lost.
	LostQueues(ctx context.Context) ([]LostQueue, error)
	// Drain puts a node into maintenance mode, or returns the progress of a drain.
	Drain(ctx context.Context, node string) (MaintenanceState, error)
	// Revive ends maintenance mode.
	Revive(ctx context.Context, node string) error
	// ForgetNode removes a node from the cluster for ever. It returns false while the broker moves its replicas
	// first: ask again.
	ForgetNode(ctx context.Context, node string) (bool, error)
	// RecoverMajority does one step of the recovery from a lost majority. lost are the lost nodes that are still in
	// the cluster. Repeat it until an answer is done.
	RecoverMajority(ctx context.Context, lost []string) (RecoveryStep, error)
	// RebalanceQueues starts spreading queue leaders evenly over the nodes.
	RebalanceQueues(ctx context.Context) error

	// SettingKeys lists the keys of the configuration that the answering node knows.
	SettingKeys(ctx context.Context, node string) ([]SettingKey, error)
	// Settings lists the configuration of the answering node.
	Settings(ctx context.Context, node string) ([]Setting, error)
	// ReloadSettings makes the answering node read its configuration files again.
	ReloadSettings(ctx context.Context, node string) (Reload, error)

	// AllQueues lists the queues of all vhosts.
	AllQueues(ctx context.Context) ([]Queue, error)
	// QueueStates lists the queues of all vhosts with name, type, state, leader and members only.
	QueueStates(ctx context.Context) ([]Queue, error)
	// AddReplica adds a member of a quorum queue or stream on a node.
	AddReplica(ctx context.Context, vhost, name, node string) error
	// DeleteReplica deletes the member of a quorum queue or stream on a node.
	DeleteReplica(ctx context.Context, vhost, name, node string) error

	// QuorumStatus returns the state of each member of a quorum queue or stream.
	QuorumStatus(ctx context.Context, vhost, name string) ([]Replica, error)
	// ImportDefinitions imports a definitions file.
	ImportDefinitions(ctx context.Context, file []byte) error

	FeatureFlags(ctx context.Context) ([]FeatureFlag, error)
	// EnableFeatureFlag enables a flag on every node; it cannot be undone.
	EnableFeatureFlag(ctx context.Context, name string) error

	GetQueue(ctx context.Context, vhost, name string) (Queue, error)
	ListQueues(ctx context.Context, vhost string) ([]Queue, error)
	DeclareQueue(ctx context.Context, vhost, name string, declaration QueueDeclaration) error
	DeleteQueue(ctx context.Context, vhost, name string, onlyIfEmpty bool) error

	GetPolicy(ctx context.Context, scope PolicyScope, vhost, name string) (Policy, error)
	ListPolicies(ctx context.Context, scope PolicyScope, vhost string) ([]Policy, error)
	PutPolicy(ctx context.Context, scope PolicyScope, vhost, name string, policy Policy) error
	DeletePolicy(ctx context.Context, scope PolicyScope, vhost, name string) error

	GetVhost(ctx context.Context, name string) (Vhost, error)
	// PutVhost creates a vhost or changes its tags, tracing and default queue type.
	PutVhost(ctx context.Context, name string, settings VhostSettings) error
	// SetVhostLimits sets the limits and removes all others.
	SetVhostLimits(ctx context.Context, name string, limits Limits) error
	// CountQueues returns the number of queues in a vhost.
	CountQueues(ctx context.Context, vhost string) (int64, error)
	// DeleteVhost deletes a vhost with everything in it.
	DeleteVhost(ctx context.Context, name string) error

	GetExchange(ctx context.Context, vhost, name string) (Exchange, error)
	DeclareExchange(ctx context.Context, vhost, name string, declaration ExchangeDeclaration) error
	DeleteExchange(ctx context.Context, vhost, name string) error

	// ListBindings lists the bindings between a source and a destination.
	ListBindings(ctx context.Context, between BindingEnds) ([]Binding, error)
	// BindingsFrom lists the bindings with an exchange as source.
	BindingsFrom(ctx context.Context, vhost, exchange string) ([]SourceBinding, error)
	Bind(ctx context.Context, between BindingEnds, routingKey string, arguments map[string]any) error
	Unbind(ctx context.Context, between BindingEnds, propertiesKey string) error

	GetUser(ctx context.Context, name string) (User, error)
	PutUser(ctx context.Context, name, password string, tags []string) error
	// PutUserWithoutPassword creates or replaces a user that cannot log in with a password.
	PutUserWithoutPassword(ctx context.Context, name string, tags []string) error
	DeleteUser(ctx context.Context, name string) error
	// CloseConnections closes all connections of a user.
	CloseConnections(ctx context.Context, user string) error
	GetPermission(ctx context.Context, vhost, user string) (Permission, error)
	ListPermissions(ctx context.Context, user string) ([]Permission, error)
	PutPermission(ctx context.Context, permission Permission) error
	// EnterVhost gives the client's own user all permissions in a vhost.
	EnterVhost(ctx context.Context, vhost string) error
	DeletePermission(ctx context.Context, vhost, user string) error
	ListTopicPermissions(ctx context.Context, user string) ([]TopicPermission, error)
	PutTopicPermission(ctx context.Context, permission TopicPermission) error
	// DeleteTopicPermission deletes the user's topic permission for one exchange.
	DeleteTopicPermission(ctx context.Context, vhost, user, exchange string) error
	// DeleteTopicPermissions deletes the user's topic permissions for every exchange of the vhost.
	DeleteTopicPermissions(ctx context.Context, vhost, user string) error
	UserLimits(ctx context.Context, user string) (Limits, error)
	// SetUserLimits sets the limits and removes all others.
	SetUserLimits(ctx context.Context, user string, limits Limits) error
}

// Access is the address of a broker and the credentials for it.
type Access struct {
	// URL of the management listener, without a path.
	URL string
	// Username; empty when the transport presents a certificate that makes the client an administrator.
	Username string
	Password string
	// External: the operator does not run the broker.
	External bool
}

// HTTPClient is a Client over HTTP.
type HTTPClient struct {
	access Access
	http   *http.Client
}

var _ Client = (*HTTPClient)(nil)

// New returns a client; clients may share a transport.
func New(access Access, transport http.RoundTripper) *HTTPClient {
	access.URL = strings.TrimSuffix(access.URL, "/")
	return &HTTPClient{access: access, http: &http.Client{
		Transport:     transport,
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// path joins escaped elements below /api.
func path(elements ...string) string {
	var b strings.Builder
	b.WriteString("/api")
	for _, element := range elements {
		b.WriteByte('/')
		b.WriteString(escape(element))
	}
	return b.String()
}

// escape escapes one element. A proxy or the server would resolve an element of dots alone as a relative path.
func escape(element string) string {
	if element == "." || element == ".." {
		return strings.ReplaceAll(element, ".", "%2E")
	}
	return url.PathEscape(element)
}

// call sends a request and reads a JSON answer into out (nil: ignored).
func (c *HTTPClient) call(ctx context.Context, method, path string, in, out any) error {
	limit := maxAnswer
	if c.access.External {
		limit = maxExternalAnswer
	}
	return c.callWithin(ctx, limit, method, path, in, out)
}

// callWithin is call with a limit of the answer's size, in bytes.
func (c *HTTPClient) callWithin(ctx context.Context, limit int, method, path string, in, out any) error {
	body, err := c.send(ctx, limit, method, path, in)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if len(body) == 0 {
		return nil
	}
	if out == nil {
		out = &json.RawMessage{}
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, &UnexpectedAnswer{Reason: fmt.Sprintf("cannot decode the broker's answer: %v", err)})
	}
	return nil
}

func (c *HTTPClient) send(ctx context.Context, limit int, method, path string, in any) ([]byte, error) {
	var reader io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encoding the request: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.access.URL+path, reader)
	if err != nil {
		return nil, fmt.Errorf("creating the request: %w", err)
	}
	c.authorize(request)
	request.Header.Set("Accept", "application/json")
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, readError(response)
	}
	return readAnswer(response.Body, limit)
}

// authorize adds the password, unless a certificate identifies the client: the broker ignores the certificate when a
// password is sent.
func (c *HTTPClient) authorize(request *http.Request) {
	if c.access.Username != "" {
		request.SetBasicAuth(c.access.Username, c.access.Password)
	}
}

// readAnswer reads an answer of at most limit bytes.
func readAnswer(body io.Reader, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if len(data) > limit {
		return nil, &AnswerTooLarge{Limit: limit}
	}
	return data, nil
}

// withoutURL removes the method and URL that net/http adds to an error, because call adds them itself.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// redirectTarget returns " to HOST"; empty when the answer names no other host.
func redirectTarget(response *http.Response) string {
	target, err := response.Location()
	if err != nil || target.Hostname() == "" {
		return ""
	}
	return fmt.Sprintf(" to %.255q", target.Host)
}

func readError(response *http.Response) error {
	failure := &APIError{Status: response.StatusCode}
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		return &UnexpectedAnswer{Status: response.StatusCode, Reason: "it redirects" + redirectTarget(response) + "; the operator follows no redirect, because it would send the password there"}
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxErrorAnswer))
	if err != nil {
		return failure
	}
	var words struct {
		Error  string `json:"error"`
		Reason any    `json:"reason"`
	}
	if json.Unmarshal(data, &words) != nil {
		// A broker's errors are JSON or have no body. Without this check, 404 of another server would mean that the
		// object does not exist. A proxy whose broker is down answers with 5xx.
		if len(data) > 0 && response.StatusCode < 500 {
			return &UnexpectedAnswer{Status: response.StatusCode, Reason: "it is not JSON"}
		}
		return failure
	}
	failure.Code = words.Error
	switch reason := words.Reason.(type) {
	case nil:
	case string:
		failure.Reason = reason
	default:
		if text, err := json.Marshal(reason); err == nil {
			failure.Reason = string(text)
		}
	}
	// One line, because conditions are columns of kubectl's tables.
	failure.Reason = strings.Join(strings.Fields(failure.Reason), " ")
	if len(failure.Reason) > maxReason {
		failure.Reason = strings.ToValidUTF8(failure.Reason[:maxReason], "")
	}
	return failure
}
