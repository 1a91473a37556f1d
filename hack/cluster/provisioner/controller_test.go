package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func class() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard"}, Provisioner: provisionerName}
}

func claim(node string) *corev1.PersistentVolumeClaim {
	name := "standard"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data-c-0", Namespace: "mq", UID: "uid-1",
			Annotations: map[string]string{claimProvider: provisionerName}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
	}
	if node != "" {
		c.Annotations[selectedNode] = node
	}
	return c
}

func start(t *testing.T, root string, client *fake.Clientset) {
	t.Helper()
	r, err := openRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := newController(client, f, r)
	if err != nil {
		t.Fatal(err)
	}
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, f func(context.Context) (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, time.Minute, true, f)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestVolumesAreProvisionedAndReclaimed(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pv")
	client := fake.NewClientset(class(), claim("node-2"))
	start(t, root, client)
	var pv *corev1.PersistentVolume
	volumes := client.CoreV1().PersistentVolumes()
	eventually(t, "volume made", func(ctx context.Context) (bool, error) {
		var err error
		pv, err = volumes.Get(ctx, "pvc-uid-1", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != corev1.LabelHostname || len(term.Values) != 1 || term.Values[0] != "node-2" {
		t.Errorf("bound to %+v, want node-2", term)
	}
	if pv.Spec.ClaimRef.UID != "uid-1" || pv.Spec.ClaimRef.Namespace != "mq" {
		t.Errorf("claimRef %+v", pv.Spec.ClaimRef)
	}
	info, err := os.Stat(pv.Spec.Local.Path)
	if err != nil || info.Mode().Perm() != 0o770 {
		t.Fatalf("directory: %v %v", info, err)
	}
	pv.Status.Phase = corev1.VolumeReleased
	if _, err := volumes.UpdateStatus(context.Background(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "volume deleted", func(ctx context.Context) (bool, error) {
		_, err := volumes.Get(ctx, "pvc-uid-1", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	if _, err := os.Stat(pv.Spec.Local.Path); !os.IsNotExist(err) {
		t.Errorf("directory is still there: %v", err)
	}
}

func TestOnlyExpandableVolumesGrow(t *testing.T) {
	c := claim("node-1")
	c.Spec.VolumeName, c.Status.Phase = "pvc-uid-1", corev1.ClaimBound
	c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue}}
	small := claim("node-1")
	pv := newVolume(small, class())
	foreign, foreignClaim := pv.DeepCopy(), c.DeepCopy()
	foreign.Name, foreign.Annotations = "theirs", nil
	foreignClaim.Name, foreignClaim.Spec.VolumeName = "theirs", "theirs"
	client := fake.NewClientset(class(), foreign, foreignClaim, pv, c)
	start(t, filepath.Join(t.TempDir(), "pv"), client)
	eventually(t, "claim grown", func(ctx context.Context) (bool, error) {
		now, err := client.CoreV1().PersistentVolumeClaims("mq").Get(ctx, c.Name, metav1.GetOptions{})
		return err == nil && now.Status.Capacity.Storage().String() == "2Gi" && len(now.Status.Conditions) == 0, err
	})
	for name, want := range map[string]string{pv.Name: "2Gi", "theirs": "1Gi"} {
		now, err := client.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil || now.Spec.Capacity.Storage().String() != want {
			t.Errorf("volume %s: %v %v", name, now.Spec.Capacity, err)
		}
	}
	left, err := client.CoreV1().PersistentVolumeClaims("mq").Get(context.Background(), "theirs", metav1.GetOptions{})
	if err != nil || left.Status.Capacity.Storage().String() != "1Gi" {
		t.Errorf("another's claim: %v %v", left.Status.Capacity, err)
	}
}

func TestForeignVolumesAreIgnored(t *testing.T) {
	foreign := claim("node-1")
	foreign.Annotations[claimProvider] = "example.com/other"
	bound := claim("node-1")
	bound.Spec.VolumeName = "somewhere"
	for name, c := range map[string]*corev1.PersistentVolumeClaim{
		"no node yet": claim(""), "another provisioner's": foreign, "bound": bound,
	} {
		if wantsVolume(c) {
			t.Errorf("%s: would be provisioned", name)
		}
	}
	retained := newVolume(claim("node-1"), class())
	retained.Status.Phase = corev1.VolumeReleased
	if !reclaimable(retained) {
		t.Error("a released volume with policy Delete must be reclaimed")
	}
	retained.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if reclaimable(retained) {
		t.Error("a retained volume must stay")
	}
}

func TestNamesStayInsideTheRoot(t *testing.T) {
	r, err := openRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", ".", "..", "../x", "a/b", "a\x00"} {
		if p, err := r.path(bad); err == nil {
			t.Errorf("%q became %s", bad, p)
		}
	}
	for _, bad := range []string{"", "/", "relative"} {
		if _, err := openRoot(bad); err == nil {
			t.Errorf("root %q was accepted", bad)
		}
	}
}
