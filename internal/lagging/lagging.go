// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lagging is for tests of what a reconciler does when its cache is behind the API server.
package lagging

import (
	"context"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is a client that shows an old version of one object when it is told to.
type Cache struct {
	client.WithWatch
	old client.Object
}

// New is a cache that is not behind.
func New(base client.WithWatch) *Cache { return &Cache{WithWatch: base} }

// Show is what is given from now on to those who ask for an object of this type; nil: what the API server has.
func (c *Cache) Show(old client.Object) { c.old = old }

// Get gives the old version, or asks.
func (c *Cache) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if c.old == nil || reflect.TypeOf(into) != reflect.TypeOf(c.old) {
		return c.WithWatch.Get(ctx, key, into, options...)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(c.old.DeepCopyObject()).Elem())
	return nil
}
