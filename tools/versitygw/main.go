// Command versitygw is an S3 server on one folder, linked from Versity's Go module: bench/ and `muster demo --real` keep
// objects in it. Buckets are folders below FOLDER/buckets, and attributes of objects are files below FOLDER/attributes,
// because not every file system has extended attributes. The account is the one of the environment variables
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. SIGTERM ends the server. Nothing of it is shipped.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// What Versity's own program has as its defaults.
const maxConnections, maxRequests, maxParts = 250000, 100000, 10000

func main() {
	listen := flag.String("listen", "", "address and port")
	folder := flag.String("folder", "", "where buckets and attributes are kept")
	accessLog := flag.String("access-log", "", "file for one line a request, in the format of S3's access log; none if empty")
	flag.Parse()
	if *listen == "" || *folder == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := serve(*listen, *folder, *accessLog); err != nil {
		fmt.Fprintln(os.Stderr, "versitygw:", err)
		os.Exit(1)
	}
}

func serve(listen, folder, accessLog string) error {
	folder, err := filepath.Abs(folder) // the backend changes the working directory
	if err != nil {
		return err
	}
	buckets, attributes := filepath.Join(folder, "buckets"), filepath.Join(folder, "attributes")
	for _, each := range []string{buckets, attributes} {
		if err := os.MkdirAll(each, 0o755); err != nil {
			return err
		}
	}
	sideCar, err := meta.NewSideCar(attributes)
	if err != nil {
		return err
	}
	backend, err := posix.New(buckets, sideCar, posix.PosixOpts{SideCarDir: attributes})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess:    os.Getenv("AWS_ACCESS_KEY_ID"),
		RootUserSecret:    os.Getenv("AWS_SECRET_ACCESS_KEY"),
		Ports:             []string{listen},
		MaxConnections:    maxConnections,
		MaxRequests:       maxRequests,
		MultipartMaxParts: maxParts,
		KeepAlive:         true,
		Quiet:             true,
		AccessLog:         accessLog,
	})
}
