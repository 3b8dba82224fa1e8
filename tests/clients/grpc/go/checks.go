// Twenty checks of baton.v1 from Go: ./checks NAME ...; a line of JSON for each. See ../python/checks.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	v1 "app/baton/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
)

const (
	service  = "baton.v1.GenerationService"
	question = "What is 12 + 30?"
	answer   = "12 + 30 = 42"
	sum      = `{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false}`
	weather  = `{"type":"object","properties":{"city":{"enum":["Paris","Oslo"]}},"required":["city"],"additionalProperties":false}`
)

var (
	address    = os.Getenv("BATON_GRPC")
	model      = os.Getenv("BATON_MODEL")
	background = context.Background()
	connection = dial(address, grpc.WithInsecure())
	client     = v1.NewGenerationServiceClient(connection)
)

var checks = map[string]func(){
	"models": func() {
		listed, err := client.ListModels(background, &v1.ListModelsRequest{})
		must(err)
		expect(len(listed.Models), 1)
		expect(listed.Models[0].Name, model)
		expect(listed.Models[0].MaxContextTokenCount > 0, true)
	},
	"conversation": func() { expect(generate(ask(64)).text, answer) },
	"text": func() {
		request := ask(8)
		request.Input = &v1.GenerateRequest_Text{Text: "What is"}
		request.Sampling.IgnoreEos = true
		expect(generate(request).end.Usage.CompletionTokenCount, int32(8))
	},
	"tokens": func() {
		asked := &v1.TokenizeRequest{Input: &v1.TokenizeRequest_Text{Text: "What is"}}
		tokenized, err := client.Tokenize(background, asked)
		must(err)
		request, same := ask(8), ask(8)
		request.Input = &v1.GenerateRequest_Tokens{Tokens: &v1.TokenSequence{TokenIds: tokenized.TokenIds}}
		same.Input = &v1.GenerateRequest_Text{Text: "What is"}
		expect(generate(request).text, generate(same).text)
	},
	"stream": func() {
		request := ask(48)
		request.Sampling.IgnoreEos = true
		expect(generate(request).count > 8, true)
	},
	"usage": func() {
		whole := generate(ask(64))
		expect(whole.end.Usage.CompletionTokenCount, int32(len(whole.tokens)))
		expect(whole.end.Usage.PromptTokenCount > 0, true)
		expect(whole.end.Reason, v1.FinishReason_FINISH_REASON_STOP)
		expect(whole.end.Placement.DecodeNodeId != "", true)
	},
	"logprobs": func() {
		request, two := ask(64), int32(2)
		request.Sampling.TopLogprobCount = &two
		whole, text := generate(request), ""
		expect(int32(len(whole.logprobs)), whole.end.Usage.CompletionTokenCount)
		for _, entry := range whole.logprobs[:len(whole.logprobs)-1] {
			expect(len(entry.Alternatives), 2)
			text += entry.Text
		}
		expect(text, answer)
	},
	"stop": func() {
		request := ask(64)
		request.Stop = []string{"="}
		whole := generate(request)
		expect(whole.text+whole.end.Stop, "12 + 30 =")
		expect(int32(len(whole.tokens)), whole.end.Usage.CompletionTokenCount)
	},
	"structured": func() {
		request, read := ask(300), map[string]int{}
		form := &v1.StructuredOutput_JsonSchema{JsonSchema: sum}
		request.Sampling.StructuredOutput = &v1.StructuredOutput{Constraint: form}
		must(json.Unmarshal([]byte(generate(request).text), &read))
		expect(len(read), 1)
	},
	"tools": func() {
		called, read := call(), map[string]string{}
		must(json.Unmarshal([]byte(called.Arguments), &read))
		expect(called.Name, "get_weather")
		expect(read["city"] == "Paris" || read["city"] == "Oslo", true)
	},
	"loop": func() {
		called := call()
		whole := generate(chat(ask(64), &v1.Conversation{Messages: []*v1.ChatMessage{
			{Role: "user", Content: question},
			{Role: "assistant", ToolCalls: []*v1.ToolCall{called}},
			{Role: "tool", ToolCallId: called.Id, Content: "sunny"},
		}}))
		expect(whole.end.Usage.CompletionTokenCount > 0, true)
		expect(len(whole.calls), 0)
	},
	"errors": func() {
		request, below := ask(64), -1.0
		request.Sampling.Temperature = &below
		expect(refused(client, background, request), "InvalidArgument INVALID_FIELD sampling.temperature")
		request = ask(64)
		request.Model = "gpt"
		expect(strings.HasPrefix(refused(client, background, request), "NotFound MODEL_NOT_FOUND"), true)
	},
	"deadline": func() {
		started := time.Now()
		ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
		defer cancel()
		expect(refused(client, ctx, long()), codes.DeadlineExceeded.String())
		expect(time.Since(started) < 3*time.Second, true)
	},
	"cancel": func() {
		ctx, cancel := context.WithCancel(background)
		stream, err := client.Generate(ctx, long())
		must(err)
		for i := 0; i < 4; i++ {
			_, err = stream.Recv()
			must(err)
		}
		cancel()
		for err == nil {
			_, err = stream.Recv()
		}
		expect(status.Code(err), codes.Canceled)
	},
	"streams": func() {
		var group sync.WaitGroup
		texts := make([]string, 50)
		for i := range texts {
			group.Add(1)
			go func(i int) {
				defer group.Done()
				texts[i] = generate(ask(16)).text
			}(i)
		}
		group.Wait()
		for _, text := range texts {
			expect(text, answer)
		}
	},
	"health": func() {
		asked := &grpc_health_v1.HealthCheckRequest{Service: service}
		told, err := grpc_health_v1.NewHealthClient(connection).Check(background, asked)
		must(err)
		expect(told.Status, grpc_health_v1.HealthCheckResponse_SERVING)
	},
	"reflection": func() {
		stream, err := grpc_reflection_v1alpha.NewServerReflectionClient(connection).ServerReflectionInfo(background)
		must(err)
		listing := &grpc_reflection_v1alpha.ServerReflectionRequest_ListServices{}
		must(stream.Send(&grpc_reflection_v1alpha.ServerReflectionRequest{MessageRequest: listing}))
		told, err := stream.Recv()
		must(err)
		expect(strings.Contains(told.String(), service), true)
		must(stream.CloseSend())
	},
	"tls_key": func() {
		authority, err := credentials.NewClientTLSFromFile(os.Getenv("BATON_CA"), "")
		must(err)
		secure := dial(os.Getenv("BATON_GRPC_TLS"), grpc.WithTransportCredentials(authority))
		defer secure.Close()
		other := v1.NewGenerationServiceClient(secure)
		known := metadata.AppendToOutgoingContext(background, "authorization", "Bearer "+os.Getenv("BATON_KEY"))
		whole, err := read(other, known, ask(64))
		must(err)
		expect(whole.text, answer)
		expect(refused(other, background, ask(64)), "Unauthenticated INVALID_API_KEY")
	},
	"keepalive": func() { // ten seconds are the least that Go allows
		pings := keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}
		other := v1.NewGenerationServiceClient(dial(address, grpc.WithInsecure(), grpc.WithKeepaliveParams(pings)))
		for i := 0; i < 2; i++ {
			whole, err := read(other, background, ask(64))
			must(err)
			expect(whole.text, answer)
			time.Sleep(time.Duration(1-i) * 12 * time.Second)
		}
	},
	"request_id": func() {
		named := metadata.AppendToOutgoingContext(background, "x-request-id", "go-1")
		whole, err := read(client, named, ask(64))
		must(err)
		expect(whole.header.Get("x-request-id")[0], "go-1")
		expect(whole.end.RequestId, "go-1")
	},
}

// What a stream brought.
type output struct {
	text     string
	tokens   []int32
	logprobs []*v1.TokenLogprob
	calls    []*v1.ToolCallDelta
	count    int
	end      *v1.GenerationEnd
	header   metadata.MD
}

func dial(address string, options ...grpc.DialOption) *grpc.ClientConn {
	connection, err := grpc.Dial(address, options...)
	must(err)
	return connection
}

func chat(request *v1.GenerateRequest, conversation *v1.Conversation) *v1.GenerateRequest {
	request.Input = &v1.GenerateRequest_Conversation{Conversation: conversation}
	return request
}

func ask(limit int32) *v1.GenerateRequest {
	temperature := 0.0
	sampling := &v1.SamplingParameters{Temperature: &temperature, MaxTokenCount: &limit}
	turns := []*v1.ChatMessage{{Role: "user", Content: question}}
	return chat(&v1.GenerateRequest{Model: model, Sampling: sampling}, &v1.Conversation{Messages: turns})
}

func long() *v1.GenerateRequest {
	request := ask(3000)
	request.Sampling.IgnoreEos = true
	return request
}

func read(client v1.GenerationServiceClient, ctx context.Context, request *v1.GenerateRequest) (output, error) {
	var whole output
	stream, err := client.Generate(ctx, request)
	if err != nil {
		return whole, err
	}
	whole.header, err = stream.Header()
	for err == nil {
		var part *v1.GenerateResponse
		if part, err = stream.Recv(); err != nil {
			break
		}
		whole.count++
		whole.text += part.Text
		whole.tokens = append(whole.tokens, part.TokenIds...)
		whole.logprobs = append(whole.logprobs, part.Logprobs...)
		whole.calls = append(whole.calls, part.ToolCalls...)
		whole.end = part.Finished
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return whole, err
}

func generate(request *v1.GenerateRequest) output {
	whole, err := read(client, background, request)
	must(err)
	return whole
}

func call() *v1.ToolCall {
	tool := &v1.Tool{Name: "get_weather", Description: "Tells the weather.", Parameters: weather}
	whole := generate(chat(ask(300), &v1.Conversation{
		Messages:   []*v1.ChatMessage{{Role: "user", Content: question}},
		Tools:      []*v1.Tool{tool},
		ToolChoice: &v1.ToolChoice{Choice: &v1.ToolChoice_Name{Name: "get_weather"}},
	}))
	expect(whole.end.Reason, v1.FinishReason_FINISH_REASON_TOOL_CALLS)
	called := &v1.ToolCall{Id: whole.calls[0].Id, Name: whole.calls[0].Name}
	for _, delta := range whole.calls {
		called.Arguments += delta.Arguments
	}
	return called
}

// refused returns the code of a call that fails, and the reason and the field of its details.
func refused(client v1.GenerationServiceClient, ctx context.Context, request *v1.GenerateRequest) string {
	_, err := read(client, ctx, request)
	words := []string{status.Code(err).String()}
	for _, detail := range status.Convert(err).Details() {
		switch known := detail.(type) {
		case *errdetails.ErrorInfo:
			words = append(words, known.Reason)
		case *errdetails.BadRequest:
			words = append(words, known.FieldViolations[0].Field)
		}
	}
	return strings.Join(words, " ")
}

func expect(actual, expected interface{}) {
	if actual != expected {
		panic(fmt.Sprintf("expected %v, got %v", expected, actual))
	}
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func run(name string) {
	started := time.Now()
	defer func() {
		message := ""
		if wrong := recover(); wrong != nil {
			message = fmt.Sprint(wrong)
		}
		text, _ := json.Marshal(message)
		fmt.Printf("{\"feature\": %q, \"error\": %s, \"seconds\": %.2f}\n", name, text, time.Since(started).Seconds())
	}()
	checks[name]()
}

func main() {
	for _, name := range os.Args[1:] {
		run(name)
	}
}
