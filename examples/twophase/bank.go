//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// bank is where one PostgreSQL server, one participant, is found.
type bank struct {
	Name string `json:"name"`
	DSN  string `json:"dsn"`
}

// account is one account of one bank.
type account struct {
	Bank   int `json:"bank"` // index of the bank
	Number int `json:"number"`
}

// transfer is what a client asks for. Request is the client's name for it. A client
// that was not told how its transfer ended asks again under the same name, and the
// money moves at most once.
type transfer struct {
	Request string  `json:"request"`
	From    account `json:"from"`
	To      account `json:"to"`
	Amount  int64   `json:"amount"`
}

// branch is the part of a transfer that concerns one bank.
type branch struct {
	bank    int
	changes []change
}

type change struct {
	account int
	delta   int64
}

// branches splits a transfer by bank: two branches, or one with both changes.
// Changes of one bank are in the order of accounts, so that two branches never
// wait for each other in a circle there.
func (t transfer) branches() []branch {
	from := change{t.From.Number, -t.Amount}
	to := change{t.To.Number, t.Amount}
	switch {
	case t.From.Bank != t.To.Bank:
		return []branch{{t.From.Bank, []change{from}}, {t.To.Bank, []change{to}}}
	case from.account < to.account:
		return []branch{{t.From.Bank, []change{from, to}}}
	default:
		return []branch{{t.From.Bank, []change{to, from}}}
	}
}

// The servers bound what a branch may wait for. Two transfers can wait for each
// other through two servers, where neither sees the circle: the lock timeout turns
// that into a no vote. A branch whose coordinator has stopped between a change and
// the vote is rolled back by the server.
const (
	lockTimeout = 300 * time.Millisecond
	idleTimeout = 5 * time.Second
	callTimeout = 5 * time.Second // for one statement, the way to the server and back included
)

// dial connects to a bank. The name is how a later coordinator finds the connection
// to end it: see fence.
func dial(ctx context.Context, b bank, name string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(b.DSN)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = callTimeout
	millis := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	config.RuntimeParams["application_name"] = name
	config.RuntimeParams["lock_timeout"] = millis(lockTimeout)
	config.RuntimeParams["idle_in_transaction_session_timeout"] = millis(idleTimeout)
	return pgx.ConnectConfig(ctx, config)
}

// run executes a statement or, if it has no arguments, several.
func run(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (pgconn.CommandTag, error) {
	// If the time is up pgx closes the connection. That is as well: nobody knows
	// what the server is doing on it.
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return conn.Exec(ctx, sql, args...)
}

// createTables makes a bank's tables. The database itself says no to an overdraft
// and to a request that it has seen: the vote is its, not the coordinator's.
func createTables(ctx context.Context, conn *pgx.Conn, accounts int, balance int64) error {
	_, err := run(ctx, conn, fmt.Sprintf(`
		create table accounts (
			number  int primary key,
			balance bigint not null check (balance >= 0)
		);
		create table entries (
			request text,
			account int references accounts,
			delta   bigint not null,
			primary key (request, account)
		);
		insert into accounts select n, %d from generate_series(0, %d) n`, balance, accounts-1))
	return err
}

// prepare does a branch's work and prepares it under the transaction's id. A nil
// error is a yes vote: the server promises to commit later, whatever happens to it
// meanwhile. Any error is a no, also one that leaves open whether the server has
// prepared: the resolver finds what such a vote has left behind.
func prepare(ctx context.Context, conn *pgx.Conn, id, request string, changes []change, wanted func() bool) error {
	err := work(ctx, conn, request, changes)
	if err == nil && !wanted() {
		err = errNotWanted
	}
	if err == nil {
		// PREPARE TRANSACTION takes no parameters; ids are made of harmless letters.
		_, err = run(ctx, conn, fmt.Sprintf("prepare transaction '%s'", id))
	}
	if err != nil && !conn.IsClosed() {
		// If PREPARE failed there is no transaction any more, and this says so
		// with a warning.
		if _, rollbackErr := run(ctx, conn, "rollback"); rollbackErr != nil {
			conn.Close(ctx)
		}
	}
	return err
}

func work(ctx context.Context, conn *pgx.Conn, request string, changes []change) error {
	if _, err := run(ctx, conn, "begin"); err != nil {
		return err
	}
	for _, c := range changes {
		// The entry comes first: it waits for an earlier attempt at this request
		// that is still in doubt, and so a no vote for lack of funds is never
		// given to a transfer that has in fact been made.
		_, err := run(ctx, conn, "insert into entries values ($1, $2, $3)", request, c.account, c.delta)
		if err != nil {
			return err
		}
		if _, err := run(ctx, conn, "update accounts set balance = balance + $2 where number = $1", c.account, c.delta); err != nil {
			return err
		}
	}
	return nil
}

// settle commits or rolls back what a server has prepared. That it has nothing under
// this id is success: it was told before, and the answer got lost.
func settle(ctx context.Context, conn *pgx.Conn, id string, commit bool) error {
	verb := "rollback"
	if commit {
		verb = "commit"
	}
	_, err := run(ctx, conn, fmt.Sprintf("%s prepared '%s'", verb, id))
	if sqlState(err) == "42704" { // undefined_object
		return nil
	}
	return err
}

// prepared lists the prepared transactions whose id begins with prefix.
func prepared(ctx context.Context, conn *pgx.Conn, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := conn.Query(ctx, `select gid from pg_prepared_xacts
		where database = current_database() and starts_with(gid, $1) order by prepared`, prefix)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// fence ends every connection whose name begins with prefix, except those named keep
// and its own, and returns when they are gone. The process that had opened them may
// be dead while the server is still busy with what it sent last, such as
// PREPARE TRANSACTION. Only when no such work is left is the list of prepared
// transactions final.
func fence(ctx context.Context, conn *pgx.Conn, prefix, keep string) error {
	for {
		var left int
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		err := conn.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
			where starts_with(application_name, $1) and application_name <> $2 and pid <> pg_backend_pid()`,
			prefix, keep).Scan(&left)
		cancel()
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// reason is why a transfer was not made, in a word that a client can act upon.
type reason string

const (
	reasonFunds       reason = "insufficient funds"
	reasonDone        reason = "already done" // an earlier attempt at this request went through
	reasonNoAccount   reason = "no such account"
	reasonBad         reason = "bad request"
	reasonBusy        reason = "busy"               // try again
	reasonUnreachable reason = "server unreachable" // try again
	reasonStopping    reason = "coordinator stopping"
	reasonOther       reason = "other"
)

// again tells whether the same request may succeed later.
func (r reason) again() bool {
	return r == reasonBusy || r == reasonUnreachable || r == reasonStopping
}

// refusal is a no vote.
type refusal struct {
	reason reason
	err    error
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.reason, r.err) }
func (r *refusal) Unwrap() error { return r.err }

// refused says why a server voted no.
func refused(err error) *refusal {
	switch code := sqlState(err); {
	case code == "23514": // check_violation
		return &refusal{reasonFunds, err}
	case code == "23505": // unique_violation
		return &refusal{reasonDone, err}
	case code == "23503": // foreign_key_violation
		return &refusal{reasonNoAccount, err}
	case code == "55P03", code == "40P01", code == "53400", code == "53200": // locks; no room to prepare
		return &refusal{reasonBusy, err}
	case errors.Is(err, errNotWanted):
		return &refusal{reasonBusy, err}
	case code == "", code[:2] == "57": // no answer, or the server shuts down or starts
		return &refusal{reasonUnreachable, err}
	default:
		return &refusal{reasonOther, err}
	}
}

var errNotWanted = errors.New("aborted while the server was working on it")

func sqlState(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}
