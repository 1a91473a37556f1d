package main

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// controller creates volumes for claims and deletes released volumes.
type controller struct {
	client  kubernetes.Interface
	root    volumeRoot
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	synced  []cache.InformerSynced
	queue   workqueue.TypedRateLimitingInterface[item]
}

// item is an object to reconcile: a claim by namespace and name, or a volume by name.
type item struct{ claimNamespace, claim, volume string }

func newController(client kubernetes.Interface, f informers.SharedInformerFactory, root volumeRoot) (*controller, error) {
	claims := f.Core().V1().PersistentVolumeClaims()
	volumes := f.Core().V1().PersistentVolumes()
	classes := f.Storage().V1().StorageClasses()
	c := &controller{
		client: client, root: root,
		claims: claims.Lister(), volumes: volumes.Lister(), classes: classes.Lister(),
		synced: []cache.InformerSynced{
			claims.Informer().HasSynced, volumes.Informer().HasSynced, classes.Informer().HasSynced,
		},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[item]()),
	}
	if err := c.watch(claims.Informer()); err != nil {
		return nil, err
	}
	return c, c.watch(volumes.Informer())
}

func (c *controller) watch(i cache.SharedIndexInformer) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, obj any) { c.enqueue(obj) },
	})
	return err
}

func (c *controller) enqueue(obj any) {
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		c.queue.Add(item{claimNamespace: o.Namespace, claim: o.Name})
	case *corev1.PersistentVolume:
		c.queue.Add(item{volume: o.Name})
	}
}

// run works until ctx ends.
func (c *controller) run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return ctx.Err()
	}
	go func() { <-ctx.Done(); c.queue.ShutDown() }()
	log.Printf("serving StorageClasses of %s in %s", provisionerName, c.root.dir)
	for {
		it, down := c.queue.Get()
		if down {
			return ctx.Err()
		}
		if err := c.sync(ctx, it); err != nil {
			log.Printf("%+v: %v", it, err)
			c.queue.AddRateLimited(it)
		} else {
			c.queue.Forget(it)
		}
		c.queue.Done(it)
	}
}

func (c *controller) sync(ctx context.Context, it item) error {
	if it.volume != "" {
		pv, err := c.volumes.Get(it.volume)
		if err != nil || !reclaimable(pv) {
			return ignoreNotFound(err)
		}
		return c.delete(ctx, pv)
	}
	claim, err := c.claims.PersistentVolumeClaims(it.claimNamespace).Get(it.claim)
	if err != nil {
		return ignoreNotFound(err)
	}
	if wantsSpace(claim) {
		return c.grow(ctx, claim)
	}
	if !wantsVolume(claim) {
		return nil
	}
	class, err := c.classes.Get(*claim.Spec.StorageClassName)
	if err != nil {
		return fmt.Errorf("claim's class: %w", err)
	}
	return c.provision(ctx, claim, newVolume(claim, class))
}

func (c *controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	path, err := c.root.create(pv.Name)
	if err != nil {
		return err
	}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	_, err = c.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // created by an earlier reconciliation; the volume controller binds it
	}
	if err == nil {
		log.Printf("made %s on %s for %s/%s", pv.Name, claim.Annotations[selectedNode], claim.Namespace, claim.Name)
	}
	return err
}

func (c *controller) delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if err := c.root.remove(pv.Name); err != nil {
		return err
	}
	log.Printf("deleted %s", pv.Name)
	uid := pv.UID
	err := c.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
