// Command informers follows one resource with client-go's reflectors, as programs written in Go do, and prints what they
// were given: a line of JSON for each call of the store. Tests compare the lines of reflectors that read through the read
// cache with those of reflectors that read from the API server. Nothing of it is shipped.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// call is one call of a reflector's store.
type call struct {
	Informer int               `json:"informer"`
	Op       string            `json:"op"`
	Key      string            `json:"key,omitempty"`
	Version  string            `json:"version,omitempty"`
	Objects  map[string]string `json:"objects,omitempty"` // of a replace: versions by key
}

// recorder is a store that only prints. It keeps no objects, so that thousands of it fit into one process.
type recorder struct {
	informer int
	out      *printer
}

type printer struct {
	mutex  sync.Mutex
	writer *bufio.Writer
}

func (p *printer) print(c call) {
	line, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.writer.Write(append(line, '\n'))
	p.writer.Flush()
}

func identity(object any) (string, string) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	key := accessor.GetName()
	if namespace := accessor.GetNamespace(); namespace != "" {
		key = namespace + "/" + key
	}
	return key, accessor.GetResourceVersion()
}

func (r *recorder) record(op string, object any) error {
	key, version := identity(object)
	r.out.print(call{Informer: r.informer, Op: op, Key: key, Version: version})
	return nil
}

func (r *recorder) Add(object any) error    { return r.record("add", object) }
func (r *recorder) Update(object any) error { return r.record("update", object) }
func (r *recorder) Delete(object any) error { return r.record("delete", object) }

func (r *recorder) Replace(objects []any, version string) error {
	versions := make(map[string]string, len(objects))
	for _, object := range objects {
		key, of := identity(object)
		versions[key] = of
	}
	r.out.print(call{Informer: r.informer, Op: "replace", Version: version, Objects: versions})
	return nil
}

func (r *recorder) Resync() error { return nil }

// listWatch reads a resource of the scheme with typed objects.
func listWatch(config rest.Config, resource schema.GroupVersionResource, namespace string, selectors metav1.ListOptions) (*cache.ListWatch, error) {
	group := resource.GroupVersion()
	config.GroupVersion = &group
	config.APIPath = "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(&config)
	if err != nil {
		return nil, err
	}
	request := func(options metav1.ListOptions) *rest.Request {
		options.LabelSelector, options.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return request(options).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return request(options).Watch(ctx)
		},
	}, nil
}

// dynamicListWatch reads any resource with untyped objects.
func dynamicListWatch(config *rest.Config, resource schema.GroupVersionResource, namespace string, selectors metav1.ListOptions) (*cache.ListWatch, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var of dynamic.ResourceInterface = client.Resource(resource)
	if namespace != "" {
		of = client.Resource(resource).Namespace(namespace)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector, options.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			return of.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector, options.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			return of.Watch(ctx, options)
		},
	}, nil
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "path of a kubeconfig")
	group := flag.String("group", "", "group of the resource; empty for the core group")
	version := flag.String("version", "v1", "version of the resource")
	resource := flag.String("resource", "pods", "plural name of the resource")
	namespace := flag.String("namespace", "", "a namespace; empty for all")
	labels := flag.String("labels", "", "label selector")
	fields := flag.String("fields", "", "field selector")
	content := flag.String("content", protobuf, "media type; any but protobuf reads untyped objects as JSON")
	count := flag.Int("count", 1, "number of reflectors, each with its own requests")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	named := schema.GroupVersionResource{Group: *group, Version: *version, Resource: *resource}
	selectors := metav1.ListOptions{LabelSelector: *labels, FieldSelector: *fields}
	out := &printer{writer: bufio.NewWriter(os.Stdout)}
	var running sync.WaitGroup
	for informer := range *count {
		var source *cache.ListWatch
		var object any = &unstructured.Unstructured{}
		if *content == protobuf {
			typed := *config
			typed.ContentType, typed.AcceptContentTypes = protobuf, protobuf+",application/json"
			source, err = listWatch(typed, named, *namespace, selectors)
			object = nil
		} else {
			source, err = dynamicListWatch(config, named, *namespace, selectors)
		}
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s-%d", *resource, informer)
		reflector := cache.NewReflectorWithOptions(source, object, &recorder{informer, out}, cache.ReflectorOptions{Name: name})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "informers:", err)
		os.Exit(1)
	}
}
