// Command coscheduling is kube-scheduler with the Coscheduling plugin of scheduler-plugins linked in, as the peer that
// bench/gang_spike measures Muster's gangs against. It takes kube-scheduler's own arguments; the plugin works where a
// profile of the configuration names it. Nothing of it is shipped.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(coscheduling.Name, coscheduling.New))))
}
