//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// guide knows the servers, and asks them which one is the primary. Sentinel would know it
// better: two servers that both believe to be the primary are told apart there by an
// epoch, and here not at all.
type guide struct {
	addrs    []string
	password string
}

// replyLimit is how long a server may take to answer a command. One that takes longer
// hangs, or its machine is gone.
const replyLimit = 2 * time.Second

func (g *guide) options(addr string) *redis.Options {
	return &redis.Options{
		Addr:     addr,
		Password: g.password,
		// What failed is repeated here by those who know what it means, after a
		// look at who is the primary now. The client would repeat it where it was.
		MaxRetries:            -1,
		DialerRetries:         1,
		DialTimeout:           replyLimit,
		ReadTimeout:           replyLimit,
		WriteTimeout:          replyLimit,
		ContextTimeoutEnabled: true,
		PoolSize:              4, // for the short checks of the callers on one line
		// A service of some hosts, about which other servers need not be asked.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
	}
}

var errNoPrimary = errors.New("no server is the primary")

// primary returns the address of the server that says that it is the primary. It asks
// all at once, and returns with the first that is: another may hang.
func (g *guide) primary(ctx context.Context) (string, error) {
	type reply struct {
		addr, role string
		err        error
	}
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	replies := make(chan reply, len(g.addrs)) // has room for all: nobody may be listening
	for _, addr := range g.addrs {
		go func() {
			role, err := g.role(ctx, addr)
			replies <- reply{addr, role, err}
		}()
	}
	err := errNoPrimary
	for range g.addrs {
		r := <-replies
		if r.role == "master" {
			return r.addr, nil
		}
		if r.err != nil {
			err = fmt.Errorf("%w; %w", err, r.err)
		}
	}
	return "", err
}

func (g *guide) role(ctx context.Context, addr string) (string, error) {
	client := redis.NewClient(g.options(addr))
	defer client.Close()
	reply, err := client.Do(ctx, "ROLE").Slice()
	if err != nil || len(reply) == 0 {
		return "", err
	}
	role, _ := reply[0].(string)
	return role, nil
}
