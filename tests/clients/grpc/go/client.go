// Streams an answer from Baton: ./client 127.0.0.1:8001 'What is 12 + 30?'
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	v1 "app/baton/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

func main() {
	security := grpc.WithInsecure()
	if authority := os.Getenv("BATON_CA"); authority != "" {
		tls, err := credentials.NewClientTLSFromFile(authority, "")
		if err != nil {
			log.Fatal(err)
		}
		security = grpc.WithTransportCredentials(tls)
	}
	connection, err := grpc.Dial(os.Args[1], security)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+os.Getenv("BATON_KEY"))
	temperature, limit := 0.0, int32(256)
	turns := []*v1.ChatMessage{{Role: "user", Content: os.Args[2]}}
	stream, err := v1.NewGenerationServiceClient(connection).Generate(ctx, &v1.GenerateRequest{
		Input:    &v1.GenerateRequest_Conversation{Conversation: &v1.Conversation{Messages: turns}},
		Sampling: &v1.SamplingParameters{Temperature: &temperature, MaxTokenCount: &limit},
	})
	for err == nil {
		var part *v1.GenerateResponse
		part, err = stream.Recv()
		fmt.Print(part.GetText())
		if end := part.GetFinished(); end != nil {
			fmt.Fprintf(os.Stderr, "\n%d tokens\n", end.Usage.CompletionTokenCount)
			return
		}
	}
	log.Fatal(err)
}
