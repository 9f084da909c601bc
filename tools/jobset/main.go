// Command jobset runs the JobSet controller, linked from its Go module, as the peer that bench/ measures Muster's gang
// jobs against. It works as JobSet's own manager does with its default client limits, except that metrics are plain HTTP
// and that the webhooks run only where a folder with a certificate (tls.crt, tls.key) is given; without them a JobSet
// must spell out what they would fill in. Nothing of it is shipped.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
	"sigs.k8s.io/jobset/pkg/metrics"
	"sigs.k8s.io/jobset/pkg/webhooks"
)

type settings struct {
	probeAddress, metricsAddress, webhookCertDir string
	webhookPort, burst                           int
	qps                                          float64
}

func main() {
	var s settings
	flag.StringVar(&s.probeAddress, "health-probe-bind-address", "127.0.0.1:0", "where /readyz is served")
	flag.StringVar(&s.metricsAddress, "metrics-bind-address", "0", "where /metrics is served; 0 for nowhere")
	flag.StringVar(&s.webhookCertDir, "webhook-cert-dir", "", "serve the webhooks with tls.crt and tls.key from this folder")
	flag.IntVar(&s.webhookPort, "webhook-port", 9443, "the webhooks' port on 127.0.0.1")
	flag.Float64Var(&s.qps, "kube-api-qps", 500, "requests per second to the API server")
	flag.IntVar(&s.burst, "kube-api-burst", 500, "requests at once to the API server")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "jobset:", err)
		os.Exit(1)
	}
}

func run(s settings) error {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, jobset.AddToScheme} {
		if err := add(kinds); err != nil {
			return err
		}
	}
	metrics.Register()
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = float32(s.qps), s.burst
	options := ctrl.Options{
		Scheme:                 kinds,
		HealthProbeBindAddress: s.probeAddress,
		Metrics:                metricsserver.Options{BindAddress: s.metricsAddress},
	}
	if s.webhookCertDir != "" {
		options.WebhookServer = webhook.NewServer(
			webhook.Options{Host: "127.0.0.1", Port: s.webhookPort, CertDir: s.webhookCertDir})
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := controllers.SetupJobSetIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	if err := controllers.SetupPodIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	client := manager.GetClient()
	jobSets := controllers.NewJobSetReconciler(client, kinds, manager.GetEventRecorderFor("jobset"))
	if err := jobSets.SetupWithManager(manager); err != nil {
		return err
	}
	pods := controllers.NewPodReconciler(client, kinds, manager.GetEventRecorderFor("pod"))
	if err := pods.SetupWithManager(manager); err != nil {
		return err
	}
	ready := healthz.Ping
	if s.webhookCertDir != "" {
		if err := setupWebhooks(manager); err != nil {
			return err
		}
		ready = manager.GetWebhookServer().StartedChecker()
	}
	if err := manager.AddReadyzCheck("readyz", ready); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func setupWebhooks(manager ctrl.Manager) error {
	jobSets, err := webhooks.NewJobSetWebhook(manager.GetClient())
	if err != nil {
		return err
	}
	if err := jobSets.SetupWebhookWithManager(manager); err != nil {
		return err
	}
	return webhooks.NewPodWebhook(manager.GetClient()).SetupWebhookWithManager(manager)
}
