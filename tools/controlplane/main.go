// Command controlplane is a whole Kubernetes control plane in one binary: the name it is called by (or its first
// argument) chooses kube-apiserver, kube-scheduler, kube-controller-manager, kubectl or etcd. Muster's tests, benches
// and `muster demo --real` run it; nothing of it is shipped.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// programs maps a program's name to what runs it; the result is the exit status.
var programs = map[string]func() int{
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 func() int { return runKubectl(kubectl.NewDefaultKubectlCommand()) },
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
}

// runKubectl reports errors as kubectl does: on stderr, in its own words, with its own exit status.
func runKubectl(command *cobra.Command) int {
	if err := cli.RunNoErrOutput(command); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func main() {
	program, known := programs[strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")]
	if !known && len(os.Args) > 1 {
		if program, known = programs[os.Args[1]]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		fmt.Fprintln(os.Stderr, "controlplane: call it as kube-apiserver, kube-controller-manager, kube-scheduler, kubectl or etcd")
		os.Exit(2)
	}
	os.Exit(program())
}
