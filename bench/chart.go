package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// panel is one part of the chart: a bar for every rival in one column.
type panel struct {
	title  string
	column string
	log    bool
}

var panels = [][]panel{
	{
		{"One request, one core, ns", requestName(0, 1), false},
		{"One request, two cores, ns", requestName(0, 2), false},
		{"… among a million, one core, ns", requestName(million, 1), false},
	},
	{
		{"A parked request, bytes", bytesName(million), false},
		{"Sweep a million, none due, µs (log)", colSweep, true},
		{"A million due at once, ns each", colMassExpiry, false},
	},
}

var (
	ourColor   = color.RGBA{R: 0x0b, G: 0x7a, B: 0x75, A: 0xff}
	theirColor = color.RGBA{R: 0xb4, G: 0xbc, B: 0xc4, A: 0xff}
	inkColor   = color.RGBA{R: 0x24, G: 0x2a, B: 0x30, A: 0xff}
)

const (
	chartWidth  = 13 * vg.Inch
	chartHeight = 6.4 * vg.Inch
)

// drawChart writes the results as a picture.
func drawChart(path string, r *results, caption string) error {
	canvas := vgsvg.New(chartWidth, chartHeight)
	if err := drawPanels(draw.New(canvas), r, caption); err != nil {
		return err
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// The reader may not have the font. These have letters of the same width, or nearly.
	family := []byte("font-family:Liberation Sans")
	text := bytes.ReplaceAll(svg.Bytes(), family, append(family, ",Arial,Helvetica,sans-serif"...))
	return os.WriteFile(path, text, 0o644)
}

func drawPanels(c draw.Canvas, r *results, caption string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	rows, cols := len(panels), len(panels[0])
	tiles := draw.Tiles{
		Rows: rows, Cols: cols,
		PadTop: 10, PadBottom: 30, PadLeft: 8, PadRight: 8, PadX: 14, PadY: 18,
	}
	for i, row := range panels {
		for j, pn := range row {
			p, err := pn.plot(r)
			if err != nil {
				return err
			}
			p.Draw(tiles.At(c, j, i))
		}
	}
	small := plot.New().Title.TextStyle
	small.Color, small.Font.Size, small.XAlign = inkColor, 10, text.XLeft
	c.FillText(small, vg.Point{X: c.Min.X + 14, Y: c.Min.Y + 14}, caption)
	return nil
}

type bar struct {
	name  string
	value float64
}

// plot draws the bars of one panel, the least on top.
func (pn panel) plot(r *results) (*plot.Plot, error) {
	var bars []bar
	for name := range r.columns[pn.column] {
		if v, ok := r.median(pn.column, name); ok {
			bars = append(bars, bar{name, v})
		}
	}
	slices.SortFunc(bars, func(a, b bar) int { return cmp.Compare(b.value, a.value) })

	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = pn.title
	p.Title.TextStyle.Color = inkColor
	p.Title.TextStyle.Font.Size = 13
	p.Title.Padding = 6
	p.HideX()
	if len(bars) == 0 {
		p.HideAxes()
		return p, nil
	}

	scale := func(v float64) float64 { return v }
	if pn.log {
		least := bars[len(bars)-1].value
		// The shortest bar is still a bar.
		scale = func(v float64) float64 { return math.Log10(v/least) + 0.3 }
	}
	var longest float64
	for _, b := range bars {
		longest = max(longest, scale(b.value))
	}
	names := make([]string, len(bars))
	labels := plotter.XYLabels{XYs: make(plotter.XYs, len(bars)), Labels: make([]string, len(bars))}
	for i, b := range bars {
		names[i] = b.name
		one, err := plotter.NewBarChart(plotter.Values{scale(b.value)}, 15)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pn.column, err)
		}
		one.Horizontal = true
		one.XMin = float64(i)
		one.LineStyle.Width = 0
		one.Color = theirColor
		if b.name == "waitlist" {
			one.Color = ourColor
		}
		p.Add(one)
		labels.XYs[i] = plotter.XY{X: scale(b.value) + longest/60, Y: float64(i)}
		labels.Labels[i] = number(b.value)
	}
	values, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pn.column, err)
	}
	for i := range values.TextStyle {
		values.TextStyle[i].Color = inkColor
		values.TextStyle[i].Font.Size = 11
		values.TextStyle[i].YAlign = text.YCenter
	}
	p.Add(values)
	p.NominalY(names...)
	p.Y.Tick.Label.Font.Size = 11
	p.Y.Tick.Label.Color = inkColor
	p.Y.Padding = 0
	p.Y.LineStyle.Width = 0
	p.X.Min, p.X.Max = 0, longest*1.22 // room for the label of the longest
	p.Y.Min, p.Y.Max = -0.6, float64(len(bars))-0.4
	return p, nil
}
