package waitlist_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeShowsExamplesThatRun compares each code block of the README with the
// body of the example that it names, and lets no block be without one. With -update
// it copies the examples into the README.
func TestReadmeShowsExamplesThatRun(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)

	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "example_test.go", source, 0)
	require.NoError(t, err)
	bodies := map[string]string{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			bodies[f.Name.Name] = dedent(string(source[files.Position(f.Body.Lbrace).Offset+1 : files.Position(f.Body.Rbrace).Offset]))
		}
	}

	assert.NotRegexp(t, `(?m)^[A-Z]{4,}$`, string(readme), "a placeholder has been left")

	block := regexp.MustCompile("(?s)<!-- (Example\\w*) -->\n```go\n(.*?)```")
	shown := map[string]bool{}
	updated := block.ReplaceAllStringFunc(string(readme), func(found string) string {
		name := block.FindStringSubmatch(found)[1]
		shown[name] = true
		body, ok := bodies[name]
		assert.True(t, ok, "the README shows %s, which does not exist", name)
		return "<!-- " + name + " -->\n```go\n" + body + "```"
	})
	assert.Equal(t, strings.Count(string(readme), "```go"), len(shown), "every go block names its own example")
	for name := range bodies {
		assert.True(t, shown[name], "the README does not show %s", name)
	}
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile("README.md", []byte(updated), 0o644))
	} else {
		assert.Equal(t, updated, string(readme), "run: go test -run Readme -update .")
	}
}

// dedent takes one level of indentation off.
func dedent(body string) string {
	lines := strings.Split(strings.Trim(body, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "\t")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}
