// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lagging has a cache that is behind the API server, for tests of reconcilers.
package lagging

import (
	"context"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is a client that returns an old version of one object when a test asks for that.
type Cache struct {
	client.WithWatch
	old client.Object
}

// New returns a cache that is up to date.
func New(base client.WithWatch) *Cache { return &Cache{WithWatch: base} }

// Show sets the version that Get returns for objects of this type; nil returns the one of the API server.
func (c *Cache) Show(old client.Object) { c.old = old }

// Get returns the old version, or asks the API server.
func (c *Cache) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if c.old == nil || reflect.TypeOf(into) != reflect.TypeOf(c.old) {
		return c.WithWatch.Get(ctx, key, into, options...)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(c.old.DeepCopyObject()).Elem())
	return nil
}
